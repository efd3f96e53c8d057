"""Asks a run's coordinator, on another host or in another terminal, for places of workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec

from shoal.clock import Deadline
from shoal.cluster.messages import FROM_COORDINATOR, Answer, JoinerPlace, PlaceRequest
from shoal.cluster.view import Role
from shoal.config import RunConfig
from shoal.errors import UsageError, WireError
from shoal.launch.outputs import say
from shoal.wire import names
from shoal.wire.addresses import TlsAddress, parse
from shoal.wire.certificates import Pin
from shoal.wire.connection import Connection, connect, learn_pin
from shoal.wire.keys import RunKey

_REACH_WITHIN = 20.0  # seconds
_AGAIN = 1.0  # seconds between two attempts to come back


@dataclass(frozen=True, slots=True)
class ScriptHere:
    """What this host's workers execute."""

    path: str  # or a module's name
    arguments: tuple[str, ...]
    is_module: bool


class PlaceAsker:
    """`host`: of this machine, for the other workers; None: the one that reaches the coordinator."""

    def __init__(
        self,
        where: str,
        key: RunKey,
        pin: Pin | None,
        script: ScriptHere,
        host: str | None,
        own: bool = False,
        own_folder: str | None = None,
    ) -> None:
        """`where`: HOST:PORT of the coordinator. A name is looked up each time: it may mean another address later.

        `pin`: of its certificate; None: whoever listens there and holds the key is the one. `own`: places are for the
        run's own workers, not for guests. `own_folder`: whose folder of checkpoints is here, where hosts have
        their own.
        """
        self.where = where
        self._name, self._port = names.host_and_port(where)
        self._key = key
        self._pin = pin
        self._script = script
        self._host = names.own_address(host) if host is not None else None
        self._own = own
        self._own_folder = own_folder
        self._config: RunConfig | None = None
        self.address = ""  # that has led there

    def move(self, address: str) -> None:
        """Another coordinator was elected, which is at this address."""
        there = parse(address)
        assert isinstance(there, TlsAddress)
        self.where, self._name, self._port = there.place, there.host, there.port
        self._pin = there.pin

    def ask(self, patient: bool, member: str = "", within: float = _REACH_WITHIN, role: Role = "worker") -> JoinerPlace:
        """A place, with the run's settings as they are on this host. Patient: as long as the run can't be reached.

        `member`: the place to have, if the run expects somebody there.
        """
        place, host = self._ask_for_place(patient, PlaceRequest(member, self._own, role), within)
        config = msgspec.structs.replace(
            place.config,
            script=self._script.path,
            arguments=self._script.arguments,
            is_module=self._script.is_module,
            host=self._host or host,
            resume=None,  # the others have done that
            logs="",  # those of the other host
            # Nobody has looked at a guest's disk: it writes nothing.
            own_folder=None if place.config.own_folder is None else self._own_folder or "",
        )
        self._config = config
        return JoinerPlace(place.member, config)

    def announce(self, members: Sequence[str]) -> None:
        assert self._config is not None
        say(f"joining run {self._config.run} at {self.where} as {', '.join(members)}")

    def _ask_for_place(self, patient: bool, request: PlaceRequest, within: float) -> tuple[JoinerPlace, str]:
        """A place in the run, and this machine's address as the coordinator's host sees it."""
        deadline = Deadline.after(within)
        while True:
            try:
                with closing(self._reach(Deadline.after(min(_REACH_WITHIN, deadline.left())))) as connection:
                    answer = _ask(connection, request, deadline)
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

    def _reach(self, deadline: Deadline) -> Connection:
        """The same. A name that was not found may be found in a moment: name servers rest, too."""
        try:
            return self.connect(deadline)
        except UsageError as error:
            raise WireError(str(error)) from error

    def connect(self, deadline: Deadline) -> Connection:
        """Through the first of its addresses that leads there. WireError if none does."""
        *others, last = ("127.0.0.1",) if self._name == "localhost" else names.lookup(self._name)
        for ip in others:
            try:
                return self._connect_to(ip, Deadline.after(deadline.left() / 2, deadline.clock))
            except WireError:
                continue
        return self._connect_to(last, deadline)

    def _connect_to(self, ip: str, deadline: Deadline) -> Connection:
        where = parse(f"tcp:{names.joined(ip, self._port)}")
        if isinstance(where, TlsAddress):
            pin = self._pin or learn_pin(str(where), self._key, deadline)
            where = TlsAddress(where.host, where.port, pin)
        connection = connect(str(where), self._key, FROM_COORDINATOR, deadline)
        self.address = str(where)
        return connection


def _ask(connection: Connection, request: PlaceRequest, deadline: Deadline) -> JoinerPlace | Answer:
    connection.send(request, deadline=deadline)
    answer = connection.receive(deadline)
    if isinstance(answer, JoinerPlace | Answer):
        return answer
    raise UsageError(f"the coordinator answered with {type(answer).__name__}: use the same Shoal on all hosts")
