"""One more worker for a run that was started elsewhere: asks for a place, starts it, starts it again if it dies.

A worker that was cut off finds itself outside when the network is back: its process ends, and the one that is started
in its place comes as a newcomer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.clock import Deadline
from shoal.cluster import coordinator_address, folders
from shoal.cluster.messages import FROM_COORDINATOR, Answer, End, JoinerPlace, PlaceRequest
from shoal.config import RUN_FILE, RunConfig
from shoal.errors import UsageError, WireError
from shoal.launch import environment
from shoal.launch.logs import Logs
from shoal.launch.outputs import Outputs, say
from shoal.launch.plan import ProcessPlan
from shoal.launch.script import BACKEND, find_script
from shoal.launch.supervision.decisions import Supervision
from shoal.launch.supervision.farewell import PARTING
from shoal.launch.supervision.heard_signals import HeardSignals
from shoal.launch.supervision.local_launcher import LocalLauncher
from shoal.launch.supervision.remote_coordination import AbstractRunElsewhere, RemoteCoordination
from shoal.launch.supervision.supervisor import KeptFolder, Supervisor
from shoal.wire.addresses import TlsAddress, parse
from shoal.wire.connection import Connection, connect
from shoal.wire.join_token import JoinToken

_REACH_WITHIN = 20.0  # seconds
_AGAIN = 1.0  # seconds between two attempts to come back


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


def join(request: JoinRequest, environ: Mapping[str, str], cores: Sequence[int]) -> int:
    """Take part until the run is over; returns the exit code for the shell."""
    script = find_script(request.script, request.is_module)
    token = JoinToken.load(request.token)
    asker = _Asker(request, script, token, _address_of(request, token))
    place = asker.ask(patient=False)
    with folders.create(folders.home(environ), f"{place.config.run}-{place.member}") as folder:
        token.key.save(folder / "key")
        place.config.save(folder)
        coordinator_address.publish(folder, asker.address)
        end = _supervise(asker, place, folder, environ, cores)
    if end.reason:
        say(end.reason)
    return end.code


def _supervise(
    asker: _Asker, place: JoinerPlace, folder: Path, environ: Mapping[str, str], cores: Sequence[int]
) -> End:
    """From the worker's start until nobody takes part from here."""
    config = place.config
    own = environment.of_worker({**environ, BACKEND: config.backend}, config.threads, True, config.seed)
    plan = ProcessPlan(place.member, tuple(cores[: config.threads]), own)
    supervision = Supervision([plan], asker.request.max_restarts, PARTING)
    logs = Logs(folder, say)  # nobody has one yet: the only worker is at the terminal
    with (
        closing(HeardSignals()) as signals,
        closing(KeptFolder(folder)) as kept,
        closing(RemoteCoordination(_JoinedRun(asker, kept, config), [plan])) as coordination,
        closing(Outputs(logs, lambda id: True)) as outputs,
        closing(LocalLauncher(folder, outputs, guests=True)) as launcher,
    ):
        asker.announce(place)
        return Supervisor(supervision, coordination, {plan.host: launcher}, kept, signals).run()


@dataclass(frozen=True, slots=True)
class _Asker:
    """Asks the coordinator for places."""

    request: JoinRequest
    script: str
    token: JoinToken
    address: str

    def ask(self, patient: bool) -> JoinerPlace:
        """A place, with the run's settings as they are on this host. Patient: as long as the run can't be reached."""
        place, host = _ask_for_place(self.address, self.token, patient)
        config = msgspec.structs.replace(
            place.config,
            script=self.script,
            arguments=self.request.arguments,
            is_module=self.request.is_module,
            host=self.request.host or host,
            resume=None,  # the others have done that
            logs="",  # those of the other host
        )
        return JoinerPlace(place.member, config)

    def announce(self, place: JoinerPlace) -> None:
        say(f"joining run {place.config.run} at {self.request.address} as {place.member}")


class _JoinedRun(AbstractRunElsewhere):
    """A run that has taken somebody in before."""

    def __init__(self, asker: _Asker, folder: KeptFolder, config: RunConfig) -> None:
        self._asker = asker
        self._folder = folder
        self._config = config

    def ask(self) -> JoinerPlace:
        return self._asker.ask(patient=True)

    def prepare(self, place: JoinerPlace) -> None:
        if place.config != self._config:  # this machine has another address now
            self._config = place.config
            self._folder.keeper.rewrite(RUN_FILE, place.config.encoded())
        self._asker.announce(place)


def _address_of(request: JoinRequest, token: JoinToken) -> str:
    where = parse(f"tcp:{request.address}")
    if isinstance(where, TlsAddress):
        where = TlsAddress(where.host, where.port, token.pin)
    return str(where)


def _ask_for_place(address: str, token: JoinToken, patient: bool) -> tuple[JoinerPlace, str]:
    """A place in the run, and this machine's address as the coordinator's host sees it."""
    deadline = Deadline.after(_REACH_WITHIN)
    while True:
        try:
            with closing(connect(address, token.key, FROM_COORDINATOR, deadline)) as connection:
                answer = _ask(connection, deadline)
                if isinstance(answer, JoinerPlace):
                    return answer, connection.local_host()
        except WireError as error:
            if patient and not deadline.passed():
                time.sleep(_AGAIN)
                continue
            raise UsageError(f"can't reach the run: {error}") from error
        if deadline.passed() or not answer.again:
            raise UsageError(f"the run takes nobody in now: {answer.text}")
        time.sleep(_AGAIN)


def _ask(connection: Connection, deadline: Deadline) -> JoinerPlace | Answer:
    connection.send(PlaceRequest(), deadline=deadline)
    answer = connection.receive(deadline)
    if isinstance(answer, JoinerPlace | Answer):
        return answer
    raise UsageError(f"the coordinator answered with {type(answer).__name__}: use the same Shoal on all hosts")
