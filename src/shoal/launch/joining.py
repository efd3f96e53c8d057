"""One more worker for a run that was started elsewhere: asks for a place, starts it, starts it again if it dies.

A worker that was cut off finds itself outside when the network is back: its process ends, and the one that is started
in its place comes as a newcomer.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from shoal.clock import Deadline
from shoal.cluster import folders, meeting
from shoal.cluster.messages import FROM_COORDINATOR, Answer, Place, PlaceRequest
from shoal.config import RunConfig
from shoal.errors import UsageError, WireError
from shoal.launch import environment
from shoal.launch.plan import find_script
from shoal.launch.processes import Process
from shoal.launch.worker import ENDED, INTERRUPTED
from shoal.wire.addresses import TlsAddress, parse
from shoal.wire.connection import Connection, connect
from shoal.wire.tickets import Ticket

_REACH_WITHIN = 20.0  # seconds
_AGAIN = 1.0  # seconds between two attempts to come back


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What the user asked for."""

    address: str  # HOST:PORT of the coordinator
    ticket: Path
    script: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    host: str | None = None  # of this machine, for the other workers; None: the one that reaches the coordinator
    max_restarts: int = 3


def join(request: JoinRequest, environ: Mapping[str, str], cores: Sequence[int]) -> int:
    """Take part until the run is over; returns the exit code for the shell."""
    script = find_script(request.script, request.is_module)
    ticket = Ticket.load(request.ticket)
    address = _address_of(request, ticket)
    restarts = 0
    while True:
        place, host = _ask_for_place(address, ticket, patient=restarts > 0)
        config = msgspec.structs.replace(
            place.config,
            script=script,
            arguments=request.arguments,
            is_module=request.is_module,
            host=request.host or host,
            resume=None,  # the others have done that
        )
        print(f"shoal: joining run {config.run} at {request.address} as {place.member}", file=sys.stderr, flush=True)
        code = _work(place.member, config, ticket, address, environ, cores)
        if code in (0, ENDED, INTERRUPTED):
            return 0 if code == ENDED else code
        restarts += 1
        if restarts > request.max_restarts:
            print(f"shoal: {place.member} ended with code {code}; giving up", file=sys.stderr, flush=True)
            return 1
        print(f"shoal: {place.member} ended with code {code}; coming back", file=sys.stderr, flush=True)


def _address_of(request: JoinRequest, ticket: Ticket) -> str:
    where = parse(f"tcp:{request.address}")
    if isinstance(where, TlsAddress):
        where = TlsAddress(where.host, where.port, ticket.pin)
    return str(where)


def _ask_for_place(address: str, ticket: Ticket, patient: bool) -> tuple[Place, str]:
    """A place in the run, and this machine's address as the coordinator's host sees it."""
    deadline = Deadline.after(_REACH_WITHIN)
    while True:
        try:
            connection = connect(address, ticket.key, FROM_COORDINATOR, deadline)
        except WireError as error:
            if patient and not deadline.passed():
                time.sleep(_AGAIN)
                continue
            raise UsageError(f"can't reach the run: {error}") from error
        try:
            answer = _ask(connection, deadline)
            if isinstance(answer, Place):
                return answer, connection.local_host()
        finally:
            connection.close()
        if deadline.passed() or not answer.again:
            raise UsageError(f"the run takes nobody in now: {answer.text}")
        time.sleep(_AGAIN)


def _ask(connection: Connection, deadline: Deadline) -> Place | Answer:
    connection.send(PlaceRequest(), deadline=deadline)
    answer = connection.receive(deadline)
    if isinstance(answer, Place | Answer):
        return answer
    raise UsageError(f"the coordinator answered with {type(answer).__name__}: use the same Shoal on all hosts")


def _work(
    id: str, config: RunConfig, ticket: Ticket, address: str, environ: Mapping[str, str], cores: Sequence[int]
) -> int:
    """One worker, from its start to its end."""
    with folders.create(folders.home(environ), f"{config.run}-{id}") as folder:
        ticket.key.save(folder / "key")
        config.save(folder)
        meeting.publish(folder, address)
        own = environment.of_worker(environ, config.backend, config.threads, True, config.seed)
        mine = ",".join(str(core) for core in cores[: config.threads]) or "-"
        process = Process("shoal.launch.worker", [str(folder), id, mine], own)
        with _PassingSignals(process):
            while process.look() is None:
                process.wait(1.0)
        code = process.look() or 0
        process.release()
        return code


class _PassingSignals:
    """Ctrl-C and SIGTERM let the worker finish its step and leave; a second one ends it at once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._heard = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        self._process.send(signal.SIGTERM if self._heard == 1 else signal.SIGKILL)
