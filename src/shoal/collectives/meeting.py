"""The shell around `Exchanges`: carries a member's messages to its peers and back, and waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, Protocol

from shoal.clock import Clock, Deadline, SystemClock
from shoal.collectives.messages import Aborted, Bulk, Handed, Published, Reduced, Refuse
from shoal.collectives.protocol import (
    Abort,
    Broken,
    Commit,
    Decision,
    Exchanges,
    Late,
    Lost,
    Mismatch,
    Reduce,
    Say,
    Stale,
    Work,
)
from shoal.errors import BadFrame, Diverged, PeerClosed, PeerTimeout, Refused
from shoal.wire.connection import Connection
from shoal.wire.memory import close_all
from shoal.wire.messages import Message
from shoal.wire.transfer import Receive, Send, await_any, transfer
from shoal.wire.waits import READABLE, wait
from shoal.wire.wakeup import Wakeup

GRACE = 1.0  # seconds that the control plane has to tell why a peer is gone


class Cargo(Protocol):
    """What travels beside the messages of one opened exchange, and where it goes."""

    def outgoing(self, rank: int, message: Published | Reduced) -> Sequence[memoryview]: ...

    def place(self, rank: int, message: Published | Reduced) -> Sequence[memoryview]: ...


class Meeting:
    """A member's place among its peers: one connection to each, all exchanges of the view in order."""

    def __init__(
        self,
        view: int,
        members: tuple[str, ...],
        me: str,
        connections: Mapping[str, Connection],
        stall: float,
        wakeup: Wakeup,
        clock: Clock | None = None,
        on_wait: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        self._on_wait = on_wait
        self.members = members
        self.rank = members.index(me)
        self._view = view
        self._stall = stall
        self._wakeup = wakeup
        self._clock = clock or SystemClock()
        self._exchanges = Exchanges(view, members, me, stall)
        self._ranks = {connection: members.index(name) for name, connection in connections.items()}
        self._connections = {rank: connection for connection, rank in self._ranks.items()}
        self._places = {connection: partial(self._place, rank) for rank, connection in self._connections.items()}
        self._cargo: dict[int, Cargo] = {}

    def hold(
        self,
        what: str,
        note: bytes,
        work: Work | None = None,
        reduce: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """Come to the next exchange and stay until it commits: everyone's notes, by rank.

        With `reduce` it has two rounds: everyone's `reduce` runs after all have come, and before any commits.
        """
        self._on_wait(True)
        rounds = 1 if reduce is None else 2
        decisions = self._exchanges.begin(what, note, self._clock.now(), work, rounds)
        notes: list[bytes] | None = None
        listen = self._hear_early
        while True:
            while decisions:
                decision = decisions.pop(0)
                if isinstance(decision, Say):
                    self._say(decision.message)
                elif isinstance(decision, Reduce) and reduce is not None:
                    reduce()
                    decisions += self._exchanges.reduced(self._clock.now())
                elif isinstance(decision, Commit):
                    notes = decision.notes
                elif isinstance(decision, Stale):
                    self._refuse(decision)
                else:
                    self._fail(what, decision)
            if notes is not None and not self._unsent():
                self._on_wait(False)
                return notes
            decisions = listen(what)
            listen = self._listen

    def ship(
        self,
        what: str,
        sends: Mapping[int, Sequence[memoryview]],
        receives: Mapping[int, Sequence[memoryview]],
    ) -> None:
        """Move arrays on whose shapes the last exchange agreed: to and from these ranks, all at once."""
        bulk = Bulk(self._view, self._exchanges.number)

        def place(rank: int, message: Message) -> Sequence[memoryview]:
            return receives[rank] if message == bulk else ()

        def late(missing: tuple[str, ...]) -> PeerTimeout:
            return self._late(what, missing, self._stall)

        try:
            messages = transfer(
                [Send(self._connections[rank], bulk, views) for rank, views in sends.items()],
                [Receive(self._connections[rank], partial(place, rank)) for rank in receives],
                Deadline.after(self._stall, self._clock),
                self._wakeup,
                late,
            )
        except PeerClosed as error:
            self._gone(what, error.peer, str(error))
        for rank, message in zip(receives, messages, strict=True):
            if message != bulk:
                raise BadFrame(f"{what}: {self.members[rank]} sent {type(message).__name__} instead of its arrays")

    def hand(self, what: str, fds: Sequence[int], expected: Sequence[int]) -> dict[int, list[int]]:
        """Give these descriptors to every peer, take expected[r] from each rank r. All of them, or none."""
        word = Handed(self._view, self._exchanges.number)
        deadline = Deadline.after(self._stall, self._clock)
        taken: dict[int, list[int]] = {}
        try:
            for connection in self._connections.values():
                connection.send_fds(word, fds, deadline)
            for rank, connection in self._connections.items():
                message, theirs = connection.receive_fds(deadline, self._wakeup)
                taken[rank] = theirs
                if message != word or len(theirs) != expected[rank]:
                    raise BadFrame(f"{what}: {connection.peer} sent {message} with {len(theirs)} descriptors")
        except BaseException as error:
            for fds_of_peer in taken.values():
                close_all(fds_of_peer)
            if isinstance(error, PeerTimeout):
                raise self._late(what, error.missing, self._stall) from error
            if isinstance(error, PeerClosed):
                self._gone(what, error.peer, str(error))
            raise
        return taken

    @property
    def number(self) -> int:
        """The number of the last exchange."""
        return self._exchanges.number

    def load(self, exchange: int, cargo: Cargo) -> None:
        """From now on, this travels beside the messages of the exchange opened under this number."""
        self._cargo[exchange] = cargo

    def unload(self, exchange: int) -> None:
        self._cargo.pop(exchange, None)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # What is said.

    def _say(self, message: Published | Reduced | Aborted) -> None:
        for rank, connection in self._connections.items():
            # What a peer said before it went still counts; reading to the end tells that it is gone.
            with suppress(PeerClosed):
                connection.post(message, self._beside(rank, message))

    def _beside(self, rank: int, message: Published | Reduced | Aborted) -> Sequence[memoryview]:
        if isinstance(message, Aborted) or message.exchange not in self._cargo:
            return ()
        return self._cargo[message.exchange].outgoing(rank, message)

    def _refuse(self, decision: Stale) -> None:
        connection = self._connections[self.members.index(decision.member)]
        with suppress(PeerClosed):
            connection.post(Refuse("stale view", decision.text))

    def _unsent(self) -> list[Connection]:
        return [connection for connection in self._ranks if connection.pending]

    def _awaited(self) -> list[Connection]:
        awaited = self._exchanges.awaited()
        return [self._connections[rank] for rank, name in enumerate(self.members) if name in awaited]

    # What is heard.

    def _hear_early(self, what: str) -> list[Decision]:
        """What came along with the last exchange's messages, where a poll would not see it."""
        early = [connection for connection in self._awaited() if connection.buffered]
        return [decision for connection in early for decision in self._hear(connection)]

    def _listen(self, what: str) -> list[Decision]:
        deadline = Deadline(self._exchanges.deadline(), self._clock)
        try:
            readable = await_any(self._awaited(), self._unsent(), deadline, self._wakeup)
        except PeerClosed:
            return []  # it took no more; what it said before is read next
        decisions: list[Decision] = []
        for connection in readable:
            decisions += self._hear(connection)
        if not decisions and deadline.passed():
            decisions = self._exchanges.tick(self._clock.now())
            if not decisions and self._unsent():
                raise self._late(what, tuple(c.peer for c in self._unsent()), self._stall)
        return decisions

    def _hear(self, connection: Connection) -> list[Decision]:
        rank = self._ranks[connection]
        decisions: list[Decision] = []
        while True:
            try:
                message = connection.try_receive(self._places[connection])
            except PeerClosed as error:
                lost = Lost(str(error))
                return decisions + self._exchanges.handle(self.members[rank], lost, self._clock.now())
            if message is None:
                return decisions
            if isinstance(message, Refuse):
                raise Refused(message.reason, f"{connection.peer} refused: {message.text}")
            if not isinstance(message, Published | Reduced | Aborted):
                raise BadFrame(f"{connection.peer} sent {type(message).__name__} where none was expected")
            decisions += self._exchanges.handle(self.members[rank], message, self._clock.now())
            if not connection.buffered or self.members[rank] not in self._exchanges.awaited():
                return decisions

    def _place(self, rank: int, message: Message) -> Sequence[memoryview]:
        if not isinstance(message, Published | Reduced) or message.exchange not in self._cargo:
            return ()
        return self._cargo[message.exchange].place(rank, message)

    # How it fails.

    def _fail(self, what: str, decision: Decision) -> NoReturn:
        match decision:
            case Abort(members, why):
                self._gone(what, members[0], why)
            case Late(missing, waited):
                raise self._late(what, missing, waited)
            case Mismatch(text):
                raise Diverged(text)
            case Broken(_, text):
                raise BadFrame(f"{what}: {text}")
        raise AssertionError(f"{what}: no such decision: {decision}")

    def _gone(self, what: str, member: str, why: str) -> NoReturn:
        """A closed connection tells that a peer is gone; the control plane may know why, and then says it."""
        wait(self._wakeup.fileno(), READABLE, Deadline.after(GRACE), self._wakeup)
        raise PeerClosed(member, f"{what}: {member} is gone: {why}")

    def _late(self, what: str, missing: tuple[str, ...], waited: float) -> PeerTimeout:
        came = len(self.members) - len(missing)
        return PeerTimeout(
            missing,
            f"{what}: {', '.join(missing)} did not come within {waited:.1f} s (deadline {self._stall:.1f} s)"
            f"; {came} of {len(self.members)} came",
        )
