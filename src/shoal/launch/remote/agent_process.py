"""An agent that a launcher has started on another host, over ssh or the like: `shoal agent`.

Its standard input and output are the channel to the launcher (channel.py). What its workers print goes there too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from shoal.clock import Deadline
from shoal.errors import BadFrame, UsageError, WireError
from shoal.launch.agent import HostPart, attend, log_folder
from shoal.launch.checkpoint_choice import claimed_by
from shoal.launch.host_folder import HostFolder, look, marked, put_manifest, sweep_marks
from shoal.launch.logs import Logs
from shoal.launch.outputs import say
from shoal.launch.places import PlaceAsker, ScriptHere
from shoal.launch.remote.agent_coordination import AgentCoordination
from shoal.launch.remote.channel import (
    AgentChannel,
    AgentLeft,
    FactsTold,
    FolderInquiry,
    Go,
    HostOrder,
    HostSuccession,
    Inquiry,
    Reached,
    Unable,
)
from shoal.launch.remote.host_facts import look_around
from shoal.launch.remote.host_keeper import HostKeeper, KeeperPart
from shoal.launch.remote.relay import Relay
from shoal.launch.script import find_script
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.launch.supervision.remote_coordination import RemoteCoordination
from shoal.wire.certificates import Pin
from shoal.wire.join_token import JoinToken
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message

SomeMessage = TypeVar("SomeMessage", bound=Message)

_REACH_WITHIN = 10.0  # seconds to a launcher that listens: more is a firewall
_COORDINATOR_WITHIN = 60.0  # seconds
_NEXT_WITHIN = 300.0  # seconds until the launcher says what is next: a cut cable does not close the input
_SENT_WITHIN = 5.0  # seconds for the last word
_AGAIN = 0.1  # seconds


def main(environ: Mapping[str, str]) -> int:
    """Take part in a run as the launcher says; returns when nothing of it is left here."""
    channel = AgentChannel(os.dup(0), os.dup(1), at_agent=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with closing(Relay(channel)) as relay:
        try:
            reason = _take_part(channel, relay, environ)
        except (EOFError, TimeoutError):
            return 1  # the launcher is gone, and nothing was started
        except (UsageError, WireError) as error:
            channel.send(Unable(str(error)))
            channel.drain(_SENT_WITHIN)
            return 1
    channel.send(AgentLeft(reason))
    channel.drain(_SENT_WITHIN)
    return 0


def _take_part(channel: AgentChannel, relay: Relay, environ: Mapping[str, str]) -> str:
    """Returns why it ended early, if it did."""
    with ExitStack() as stack:
        return _take_part_with(channel, relay, environ, stack)


def _look_at(asked: FolderInquiry, stack: ExitStack) -> HostFolder:
    """What is in the folder for checkpoints; which is the run's until the stack is closed."""
    folder = Path(asked.folder)
    owner = stack.enter_context(marked(folder, asked.run, asked.host))
    if owner == asked.host:  # nobody of the run has locked it yet
        claimed = stack.enter_context(claimed_by(asked.folder, asked.run))
        if claimed is not None:
            sweep_marks(folder, asked.run)
    return look(folder, asked.resume, owner)


def _take_part_with(channel: AgentChannel, relay: Relay, environ: Mapping[str, str], stack: ExitStack) -> str:
    inquiry = _next(channel, Inquiry)
    environ = {**environ, **inquiry.environment}
    try:
        os.chdir(inquiry.folder)
    except OSError as error:
        raise UsageError(
            f"there is no folder {inquiry.folder} to work in ({error.strerror}). Have it on a shared disk, or let "
            "`--sync` copy the script's folder"
        ) from error
    cores = sorted(os.sched_getaffinity(0))
    script = find_script(inquiry.script, inquiry.is_module)
    facts = look_around(inquiry.backend, script, inquiry.is_module, len(cores))
    held = _look_at(inquiry.checkpoints, stack) if inquiry.checkpoints is not None else None
    channel.send(FactsTold(facts, held))

    order = _next(channel, HostOrder)
    config = msgspec.structs.replace(order.config, script=script, logs="")
    if config.own_folder is not None:
        assert held is not None
        config = msgspec.structs.replace(config, own_folder=held.owner)
    if order.resumed is not None and config.saving is not None:
        known = put_manifest(Path(config.saving.folder), config.run, order.resumed)
        config = msgspec.structs.replace(config, resume=str(known))
    token = JoinToken(config.run, RunKey(bytes.fromhex(order.key)), Pin.parse(order.pin))
    own = ScriptHere(script, config.arguments, config.is_module)
    asker = PlaceAsker(order.address, token.key, token.pin, own, None, own=True, own_folder=config.own_folder)
    host = _reach(asker, _REACH_WITHIN, insist=False)
    channel.send(Reached())

    _next(channel, Go)
    _reach(asker, _COORDINATOR_WITHIN, insist=True)
    config = msgspec.structs.replace(config, host=host)
    part = HostPart(config, order.members, order.max_restarts, token.key, asker.address)
    logs = log_folder(config, environ)
    relay.follow(logs)
    coordinated = partial(_coordinated, part, order.succession, asker, channel, environ, logs)
    return attend(part, asker, environ, cores, logs, coordinated).reason


def _coordinated(
    part: HostPart,
    succession: HostSuccession | None,
    asker: PlaceAsker,
    channel: AgentChannel,
    environ: Mapping[str, str],
    logs: Path,
    inner: RemoteCoordination,
    folder: Path,
) -> AgentCoordination:
    """By the launcher; and by whoever is elected, should the launcher's host be lost."""
    config, saves = part.config, part.config.saving is not None
    if succession is None:
        return AgentCoordination(inner, channel, saves)
    it = succession
    keeper = HostKeeper(
        KeeperPart(it.me, it.launcher, it.electorate, it.epoch, config.host, part.address, it.on_split, str(logs)),
        folder,
        part.key,
    )

    def start() -> LocalCoordination:
        return LocalCoordination(folder, config, environ, Logs(logs, say), (), elected=True)

    return AgentCoordination(inner, channel, saves, keeper, start, asker.move, config.deadlines.orphaned)


def _next(channel: AgentChannel, kind: type[SomeMessage]) -> SomeMessage:
    """The next message, which is of this kind. The launcher says what it says at once, and in this order."""
    message = channel.next(_NEXT_WITHIN)
    if not isinstance(message, kind):
        raise BadFrame(f"expected {kind.__name__}, got {type(message).__name__}: use the same Shoal on all hosts")
    return message


def _reach(asker: PlaceAsker, within: float, insist: bool) -> str:
    """This host's address that leads to the coordinator. `insist`: it is about to listen."""
    deadline = Deadline.after(within)
    while True:
        try:
            with closing(asker.connect(deadline)) as connection:
                return connection.local_host()
        except WireError as error:
            if not insist or deadline.passed():
                raise UsageError(
                    f"it can't reach {asker.where} of the launcher's host: {error}. If a firewall is in between, let "
                    "that port through, or choose another with --address HOST:PORT"
                ) from error
            time.sleep(_AGAIN)
