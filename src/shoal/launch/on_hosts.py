"""`shoal run --hosts`, or in a Slurm allocation: the coordinator and perhaps workers here, an agent with workers on
every other host.

Everything is compared before anything is started: packages, the script, processors, whether the coordinator's port can
be reached from there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from shoal.checkpoint.addresses import place_of
from shoal.cluster.messages import End
from shoal.cluster.succession.electorate import Electorate
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.cluster.view import role_of
from shoal.config import RunConfig, Servers
from shoal.errors import UsageError
from shoal.launch.checkpoint_choice import ApartFolders, apart_folders
from shoal.launch.devices.reading import read_inventory
from shoal.launch.host_folder import HeldCheckpoint, holders, look, marked, sweep_marks
from shoal.launch.outputs import say
from shoal.launch.plan import LaunchPlan, make_plan
from shoal.launch.remote.agents import Agents, agent_words
from shoal.launch.remote.agents_coordination import AgentsCoordination
from shoal.launch.remote.channel import FolderInquiry, HostOrder, HostSuccession, Inquiry
from shoal.launch.remote.host_facts import look_around
from shoal.launch.remote.host_keeper import HostKeeper, KeeperPart
from shoal.launch.remote.host_list import HostSlots, server_shares, shares
from shoal.launch.remote.passed_on import passed_on
from shoal.launch.remote.remote_shell import AbstractRemoteShell, Srun, Ssh
from shoal.launch.remote.sync import sync, synced_folder
from shoal.launch.request import LaunchRequest
from shoal.launch.script import find_script
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.wire import names
from shoal.wire.certificates import Pin
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener

FIRST_HOST = "the first host"  # as a voter: the one on which the run was started
ON_SPLIT_FIRST, ON_SPLIT_WAIT = "first", "wait"


@dataclass(frozen=True, slots=True)
class HostPlacement:
    """Which workers and servers are started where."""

    here: tuple[str, ...]
    elsewhere: Mapping[str, tuple[str, ...]]  # by host; none is empty

    @classmethod
    def of(cls, hosts: tuple[HostSlots, ...], workers: int, is_here: Sequence[bool], servers: int = 0) -> HostPlacement:
        pairs = zip(shares(hosts, workers), server_shares(len(hosts), servers), strict=True)
        given = [(*of_workers, *of_servers) for of_workers, of_servers in pairs]
        here = tuple(id for ids, own in zip(given, is_here, strict=True) if own for id in ids)
        others = zip(hosts, given, is_here, strict=True)
        return cls(here, {host.name: ids for host, ids, own in others if ids and not own})

    def threads(self, cores: Mapping[str, int], here: int) -> int:
        """Of each worker: as many as the tightest host has cores for."""
        parts = [*((ids, cores[host]) for host, ids in self.elsewhere.items()), (self.here, here)]
        each = [(sum(role_of(id) == "worker" for id in ids), number) for ids, number in parts]
        return max(1, min(number // workers for workers, number in each if workers))

    def server_hosts(self) -> int:
        """On how many hosts there are servers."""
        return sum(any(role_of(id) == "server" for id in ids) for ids in (self.here, *self.elsewhere.values()))


class HostedRun:
    """A run's agents, from before its plan is made to its end."""

    def __init__(self, placement: HostPlacement, agents: Agents, on_split: str) -> None:
        self._placement = placement
        self._agents = agents
        self._on_split = on_split
        self._keeper: HostKeeper | None = None
        voters = (FIRST_HOST, *placement.elsewhere)
        self._electorate = Electorate(voters, first_decides=on_split == ON_SPLIT_FIRST)
        self._joined: AgentsCoordination | None = None
        self.apart: ApartFolders | None = None

    def order(self, plan: LaunchPlan, key: RunKey, pin: Pin, probe: Listener) -> None:
        """Give each agent its part. UsageError names the hosts that can't reach the coordinator's address."""
        assert plan.config.address is not None
        address = plan.config.address.removeprefix("tcp:")
        config = plan.config
        if self.apart is not None and self.apart.at is not None:
            config = msgspec.structs.replace(config, resume=str(self.apart.at))
        self._agents.order(
            {
                host: HostOrder(
                    config,
                    ids,
                    plan.max_restarts,
                    key.hex(),
                    str(pin),
                    address,
                    self._succession(plan, host),
                    self._lacks(host),
                )
                for host, ids in self._placement.elsewhere.items()
            },
            probe,
        )

    def _lacks(self, host: str) -> HeldCheckpoint | None:
        """The checkpoint to go on from, if this host has no copy of it."""
        apart = self.apart
        if apart is None or apart.chosen is None or host in holders(apart.folders, apart.chosen):
            return None
        return apart.chosen

    def prepare(self, folder: Path, config: RunConfig) -> bool:
        """Before the coordinator is started in this folder. Whether another can be elected in its place."""
        if config.least is None:
            return False
        assert config.address is not None
        SuccessionStart(1, self._electorate, FIRST_HOST, is_launchers=True).save(folder)
        host = names.host_and_port(config.address.removeprefix("tcp:"))[0]
        part = KeeperPart(FIRST_HOST, FIRST_HOST, self._electorate, 1, host, None, _command(self._on_split))
        self._keeper = HostKeeper(part, folder, RunKey.load(folder / "key"))
        return True

    def _succession(self, plan: LaunchPlan, host: str) -> HostSuccession | None:
        if plan.config.least is None:
            return None
        return HostSuccession(host, FIRST_HOST, self._electorate, 1, _command(self._on_split))

    def begin(self, coordination: LocalCoordination, config: RunConfig) -> AgentsCoordination:
        """The coordinator has been started; returns what hears of it and of the agents."""
        logs, keeper = Path(config.logs), self._keeper
        patience = config.deadlines.orphaned
        self._joined = AgentsCoordination(coordination, self._agents, logs, config.verbose, keeper, patience)
        self._agents.go()
        return self._joined

    def end(self, end: End) -> None:
        """The run is over: all that it has started elsewhere goes."""
        joined = self._joined
        assert joined is not None
        self._agents.close(end, joined.heed_agents)
        joined.show_rest()

    def close(self) -> None:
        self._agents.close(None)
        if self._keeper is not None:
            self._keeper.close()
        if self._joined is not None:
            self._joined.close()


@contextlib.contextmanager
def planned_on_hosts(
    request: LaunchRequest,
    environ: Mapping[str, str],
    cores: tuple[int, ...],
    run: str,
    shell: AbstractRemoteShell | None = None,
) -> Iterator[tuple[LaunchPlan, HostedRun | None]]:
    """The plan of the part that is started here, and what is started elsewhere. UsageError if the hosts do not fit.

    `shell`: by which agents are started there; None: srun in a Slurm allocation, else ssh.
    """
    hosts = request.hosts
    assert hosts is not None
    shell = shell or (Srun() if request.by_srun else Ssh())
    places = {host.name: _addresses(host.name, shell) for host in hosts}
    own = [shell.may_be_here and _is_here(host.name, places[host.name]) for host in hosts]
    placement = HostPlacement.of(hosts, request.workers, own, request.servers)
    if request.standby and not any(role_of(id) == "worker" for id in placement.here):
        raise UsageError("--standby waits on this host, which is not one of --hosts: add it, or leave --standby out.")
    if not placement.elsewhere:
        check_split(replace(request, hosts=None))
        yield make_plan(replace(request, hosts=None), environ, cores, run, inventory=read_inventory(environ)), None
        return
    if request.address is None:
        request = replace(request, address=_free_address({host: places[host] for host in placement.elsewhere}))
    inventory = read_inventory(environ)
    unread = replace(request, resume=None, checkpoint=None)  # checkpoints are looked at on all hosts at once
    draft = make_plan(unread, environ, cores, run, placement.here, inventory)
    script, is_module = find_script(request.script, request.is_module), request.is_module
    here = look_around(draft.config.backend, script, is_module, len(cores))
    passed = passed_on(environ, request.env)
    if request.sync:
        if not isinstance(shell, Ssh):
            raise UsageError("--sync copies over ssh. With Slurm or Ray have the script on a disk that all nodes see.")
        sync(synced_folder(script, is_module), list(placement.elsewhere), shell, say)
    agents = Agents(shell, list(placement.elsewhere), agent_words(request.remote_python or sys.executable))
    with (
        contextlib.ExitStack() as stack,
        contextlib.closing(HostedRun(placement, agents, request.on_split)) as hosted,
    ):
        asked = _folder_inquiry(request, run, next((h.name for h, o in zip(hosts, own, strict=True) if o), None))
        inquiry = Inquiry(os.getcwd(), script, is_module, draft.config.backend, passed, asked)
        apart = None
        if asked is None:
            facts = agents.inquire(inquiry, here)
        else:
            folder = Path(asked.folder)
            sweep_marks(folder, run)
            owner = stack.enter_context(marked(folder, run, asked.host))
            facts = agents.inquire(inquiry, here)
            if any(there.owner != owner for there in agents.folders.values()):
                folders = {asked.host: look(folder, request.resume, owner), **agents.folders}
                apart = apart_folders(request, run, asked.host, folders)
        hosted.apart = apart
        threads = request.threads or placement.threads({host: told.cores for host, told in facts.items()}, len(cores))
        plan = make_plan(replace(request, threads=threads), environ, cores, run, placement.here, inventory, apart)
        listed = [f"this one ({_told(placement.here)})"] if placement.here else []
        listed += [f"{host} ({_told(ids)})" for host, ids in placement.elsewhere.items()]
        say(f"hosts: {', '.join(listed)}, by {shell.program}")
        if plan.config.servers is not None and (warning := _too_few_hosts(placement, plan.config.servers)):
            say(warning)
        yield plan, hosted


def _folder_inquiry(request: LaunchRequest, run: str, here: str | None) -> FolderInquiry | None:
    """`here`: what this host is called among the run's; None if it is none of them."""
    if request.checkpoint is None:
        return None
    place = place_of(request.checkpoint)
    return (
        FolderInquiry(str(place), run, request.resume, here or "the launcher's host")
        if isinstance(place, Path)
        else None
    )


def check_split(request: LaunchRequest) -> None:
    """UsageError if the user has said what hosts are to do that can't reach each other, and there is but one."""
    if request.hosts is None and request.on_split != ON_SPLIT_FIRST:
        raise UsageError("--on-split is for a run on several hosts: name them with --hosts.")


def _told(ids: Sequence[str]) -> str:
    """How many workers, and servers if there are some."""
    servers = sum(role_of(id) == "server" for id in ids)
    workers = len(ids) - servers
    return f"{workers}" if not servers else f"{workers} + {servers} server{'' if servers == 1 else 's'}"


def _too_few_hosts(placement: HostPlacement, servers: Servers) -> str | None:
    """What the user should know who wants more copies than hosts can keep apart."""
    hosts = placement.server_hosts()
    if servers.replicas <= hosts:
        return None
    what = f"--replicas {servers.replicas}: servers are on {hosts} host{'' if hosts == 1 else 's'}, so "
    if hosts == 1:
        return f"{what}all copies of a shard are on the same one, and lost with it. Use --servers 2 or more"
    return f"{what}some copies of a shard are on the same one. Name more hosts, or use --replicas {hosts}"


def _command(on_split: str) -> str | None:
    """The user's, which knows whether the other half is dead."""
    return None if on_split in (ON_SPLIT_FIRST, ON_SPLIT_WAIT) else on_split


def _addresses(host: str, shell: AbstractRemoteShell) -> tuple[str, ...]:
    """Of a host; none if only the shell finds the way."""
    name = shell.host_name(host)
    with contextlib.suppress(UsageError):
        return names.lookup(name)
    return ()


def _is_here(host: str, addresses: Sequence[str]) -> bool:
    """Whether it is this host."""
    return any(map(names.is_own, addresses)) or host == os.uname().nodename


def _free_address(hosts: Mapping[str, Sequence[str]]) -> str:
    """A free port at the address of this host from which the first of the others is reached."""
    for address in (address for addresses in hosts.values() for address in addresses):
        if (own := names.free_address_towards(address)) is not None:
            return own
    raise UsageError(
        f"this host finds no way to {', '.join(hosts)}. Correct the name; or, if ssh reaches it through another host, "
        "say with --address HOST:PORT where it reaches this one."
    )
