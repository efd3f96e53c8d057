"""A host's part of a run that is coordinated elsewhere: starts its workers, watches them, replaces those that die.

An agent has no coordinator of its own. Whoever starts it has found out what it needs: the run's key, where the
coordinator listens, the run's settings as they are on this host, and which workers it is to start.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shoal.cluster import coordinator_address, folders
from shoal.cluster.messages import End, JoinerPlace
from shoal.cluster.view import Role, role_of
from shoal.config import RUN_FILE, RunConfig
from shoal.launch import environment
from shoal.launch import logs as log_files
from shoal.launch.devices.assignment import assign_like, environment_of, environment_without
from shoal.launch.devices.reading import for_backend, read_inventory
from shoal.launch.outputs import Outputs, say
from shoal.launch.places import PlaceAsker
from shoal.launch.plan import ProcessPlan, share
from shoal.launch.script import BACKEND, read_script
from shoal.launch.supervision.coordination import AbstractCoordination
from shoal.launch.supervision.decisions import Supervision
from shoal.launch.supervision.farewell import PARTING
from shoal.launch.supervision.heard_signals import HeardSignals
from shoal.launch.supervision.local_launcher import LocalLauncher
from shoal.launch.supervision.remote_coordination import AbstractRunElsewhere, RemoteCoordination
from shoal.launch.supervision.supervisor import KeptFolder, Supervisor
from shoal.wire.keys import RunKey


@dataclass(frozen=True, slots=True)
class HostPart:
    """What an agent is to do."""

    config: RunConfig  # as it is on this host
    members: tuple[str, ...]  # whom the coordinator expects from here
    max_restarts: int
    key: RunKey
    address: str  # where the coordinator listens
    first_slot: int = 0  # of this host, where other agents have some
    slots: int | None = None  # of all of them together; None: it has all


def attend(
    part: HostPart,
    asker: PlaceAsker,
    environ: Mapping[str, str],
    cores: Sequence[int],
    logs: Path | None = None,
    coordinated: Callable[[RemoteCoordination, Path], AbstractCoordination] = lambda inner, _: inner,
) -> End:
    """From the first worker's start until nobody takes part from here.

    `logs`: where workers print, but the chief; None: all at the terminal. `coordinated`: who says more than a
    coordinator elsewhere does, in this host's folder of the run.
    """
    config = part.config
    with folders.create(folders.home(environ), f"{config.run}-{part.members[0]}") as folder:
        part.key.save(folder / "key")
        config.save(folder)
        coordinator_address.publish(folder, part.address)
        plans = plans_of(part, environ, cores)
        supervision = Supervision(plans, part.max_restarts, PARTING)
        kept_logs = log_files.Logs(logs or folder, say)
        with (
            closing(HeardSignals()) as signals,
            closing(KeptFolder(folder)) as kept,
            closing(coordinated(RemoteCoordination(_JoinedRun(asker, kept, config), plans), folder)) as coordination,
            closing(Outputs(kept_logs, lambda id: logs is None or id == log_files.CHIEF)) as outputs,
            closing(LocalLauncher(folder, outputs, _preload(config, plans), guests=True)) as launcher,
        ):
            return Supervisor(supervision, coordination, {plans[0].host: launcher}, kept, signals).run()


def plans_of(part: HostPart, environ: Mapping[str, str], cores: Sequence[int]) -> list[ProcessPlan]:
    """Of its workers: each with cores of its own, if there are enough, and as many devices as the run's others have.

    Servers have no device, and compute where there is room.
    """
    config = part.config
    own = environment.of_worker({**environ, BACKEND: config.backend}, config.threads, True, config.seed)
    workers = [id for id in part.members if role_of(id) == "worker"]
    servers = [id for id in part.members if role_of(id) == "server"]
    slots = part.slots or len(workers)
    pinned = slots * config.threads + len(servers) <= len(cores)
    inventory = for_backend(read_inventory(environ), config.backend, environ)
    given = assign_like(config.devices, inventory, slots, config.backend)
    plans = [
        ProcessPlan(
            id,
            share(tuple(cores), config.threads, number) if pinned else (),
            own | environment_of(given, number, inventory, environ),
        )
        for number, id in enumerate(workers, part.first_slot)
    ]
    return [*plans, *(ProcessPlan(id, (), own | environment_without(given)) for id in servers)]


def log_folder(config: RunConfig, environ: Mapping[str, str]) -> Path:
    """Where the workers of this host print. Its own, also where several hosts have one home."""
    folder = log_files.home(environ) / f"{config.run}@{platform.node()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _preload(config: RunConfig, plans: Sequence[ProcessPlan]) -> Mapping[str, str] | None:
    """The environment in which keras is imported once for all, where that pays and changes nothing."""
    if len(plans) < 2 or not read_script(config.script, config.is_module, plans[0].environment).leaves_environment:
        return None
    return plans[0].environment


class _JoinedRun(AbstractRunElsewhere):
    """A run that has taken somebody in before."""

    def __init__(self, asker: PlaceAsker, folder: KeptFolder, config: RunConfig) -> None:
        self._asker = asker
        self._folder = folder
        self._config = config

    def ask(self, role: Role) -> JoinerPlace:
        return self._asker.ask(patient=True, role=role)

    def prepare(self, place: JoinerPlace) -> None:
        if place.config != self._config:  # this machine has another address now
            self._config = place.config
            self._folder.keeper.rewrite(RUN_FILE, place.config.encoded())
        self._asker.announce([place.member])
