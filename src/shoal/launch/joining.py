"""More workers for a run that was started elsewhere: asks for places and attends to them, as an agent of that run.

A worker that was cut off finds itself outside when the network is back: its process ends, and the one that is started
in its place comes as a newcomer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cluster.process_limits import check_processes
from shoal.errors import UsageError
from shoal.launch.agent import HostPart, attend, log_folder
from shoal.launch.outputs import say
from shoal.launch.places import PlaceAsker, ScriptHere
from shoal.launch.script import find_script
from shoal.wire.join_token import JoinToken


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What the user asked for."""

    address: str  # HOST:PORT of the coordinator
    token: Path
    script: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    host: str | None = None  # of this machine, for the other workers; None: the one that reaches the coordinator
    max_restarts: int = 3
    workers: int = 1


def join(request: JoinRequest, environ: Mapping[str, str], cores: Sequence[int]) -> int:
    """Take part until the run is over; returns the exit code for the shell."""
    if request.workers < 1:
        raise UsageError(f"-n {request.workers}: join with at least 1 worker.")
    check_processes(f"-n {request.workers}", request.workers, len(cores))
    script = ScriptHere(find_script(request.script, request.is_module), request.arguments, request.is_module)
    token = JoinToken.load(request.token)
    asker = PlaceAsker(request.address, token.key, token.pin, script, request.host)
    places = [asker.ask(patient=False) for _ in range(request.workers)]
    members = tuple(place.member for place in places)
    part = HostPart(places[0].config, members, request.max_restarts, token.key, asker.address)
    asker.announce(members)
    logs = log_folder(part.config, environ) if len(members) > 1 else None  # one alone is at the terminal
    if logs is not None:
        say(f"their output is in {logs}")
    end = attend(part, asker, environ, cores, logs)
    if end.reason:
        say(end.reason)
    return end.code
