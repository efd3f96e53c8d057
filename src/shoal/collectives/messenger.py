"""The shell around `Exchanges`: carries a member's messages to its peers and back, and waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, Protocol

from shoal.clock import Clock, Deadline, SystemClock
from shoal.collectives.messages import Aborted, Bulk, Handed, Reduced, RefusePeer, SlotsPublished, Summed, TotalsArrived
from shoal.collectives.protocol import (
    Abort,
    Broken,
    Commit,
    Decision,
    Exchanges,
    ExchangeWork,
    Late,
    Lost,
    Mismatch,
    Reduce,
    Rounds,
    SayToPeer,
    Stale,
    Sum,
)
from shoal.collectives.protocol import Message as ExchangeMessage
from shoal.errors import BadFrame, Diverged, PeerClosed, PeerTimeout, Refused
from shoal.observe.counters import Traffic
from shoal.observe.recorder import Waited
from shoal.wire.connection import Connection
from shoal.wire.memory import close_all
from shoal.wire.messages import Message
from shoal.wire.transfer import Receive, Sending, await_any, transfer
from shoal.wire.waits import READABLE, wait
from shoal.wire.wakeup import Wakeup

GRACE = 1.0  # seconds that the control plane has to tell why a peer is gone


Laden = SlotsPublished | Summed | Reduced
# Tuples: every message is looked at, and a union is made anew each time.
_LADEN = (SlotsPublished, Summed, Reduced)
_HEARD = (*_LADEN, TotalsArrived, Aborted)


class Cargo(Protocol):
    """What travels beside the messages of one opened exchange, and where it goes."""

    def outgoing(self, rank: int, message: Laden) -> Sequence[memoryview]: ...

    def place(self, rank: int, message: Laden) -> Sequence[memoryview]: ...


class Messenger:
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
        on_wait: Callable[[bool, Sequence[Waited]], None] = lambda waiting, waits: None,
        neighbours: Sequence[int] = (),
        traffic: Traffic | None = None,
    ) -> None:
        """`neighbours`: the ranks on this member's host, which sum up together before others hear of it."""
        self.traffic = traffic or Traffic()
        self._sent = 0  # bytes that are counted already
        self._on_wait = on_wait
        self.members = members
        self.rank = members.index(me)
        self._view = view
        self._stall = stall
        self._wakeup = wakeup
        self._clock = clock or SystemClock()
        self._neighbours = frozenset(neighbours)
        self._exchanges = Exchanges(view, members, me, stall, frozenset(members[rank] for rank in neighbours))
        self._ranks = {connection: members.index(name) for name, connection in connections.items()}
        self._connections = {rank: connection for connection, rank in self._ranks.items()}
        self._places = {connection: partial(self._place, rank) for rank, connection in self._connections.items()}
        self._cargo: dict[int, Cargo] = {}

    def hold(
        self,
        what: str,
        note: bytes,
        work: ExchangeWork | None = None,
        reduce: Callable[[], None] | None = None,
        sum_up: Callable[[], int] | None = None,
    ) -> list[bytes]:
        """Come to the next exchange and stay until it commits: everyone's notes, by rank.

        With `reduce`, everyone's `reduce` runs after all have come, and before any commits. With `sum_up` too, that
        runs before it, as soon as the neighbours have come; it returns how many sums it has made.
        """
        self._on_wait(True, ())
        waits: list[Waited] = []
        rounds = Rounds.NOTES if reduce is None else Rounds.SLICES if sum_up is None else Rounds.HOSTS
        decisions = self._exchanges.begin(what, note, self._clock.now(), work, rounds)
        notes: list[bytes] | None = None
        has_listened = False
        while True:
            while decisions:
                decision = decisions.pop(0)
                if isinstance(decision, SayToPeer):
                    self._say(decision.message)
                elif isinstance(decision, Sum) and sum_up is not None:
                    decisions += self._exchanges.summed(sum_up(), self._clock.now())
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
                self._on_wait(False, waits)
                self._count_sent()
                return notes
            if not has_listened:
                has_listened = True
                decisions = self._hear_early()
                continue
            # What takes its time on the way is no waiting for a peer, which has come.
            on_its_way = notes is not None or self._is_arriving()
            begun, received = self._clock.now(), self._received() if on_its_way else 0
            decisions = self._listen(what)
            now = self._clock.now()
            if on_its_way:
                self.traffic.arriving += now - begun
                self.traffic.arrived += self._received() - received
            else:
                waits.append(Waited(begun, now))

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
                [Sending(self._connections[rank], bulk, views) for rank, views in sends.items()],
                [Receive(self._connections[rank], partial(place, rank)) for rank in receives],
                Deadline.after(self._stall, self._clock),
                self._wakeup,
                late,
            )
        except PeerClosed as error:
            self._gone(what, error.peer, str(error))
        self._count_sent()
        for rank, message in zip(receives, messages, strict=True):
            if message != bulk:
                raise BadFrame(f"{what}: {self.members[rank]} sent {type(message).__name__} instead of its arrays")

    def hand(self, what: str, fds: Sequence[int], expected: Mapping[int, int]) -> dict[int, list[int]]:
        """Give these descriptors to the ranks of `expected`, and take so many from each. All of them, or none."""
        word = Handed(self._view, self._exchanges.number)
        deadline = Deadline.after(self._stall, self._clock)
        taken: dict[int, list[int]] = {}
        try:
            for rank in expected:
                self._connections[rank].send_fds(word, fds, deadline)
            for rank in expected:
                connection = self._connections[rank]
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

    # From one peer to another, between two exchanges ------------------------------------------------

    @property
    def view(self) -> int:
        return self._view

    def is_near(self, rank: int) -> bool:
        """Whether a peer can be given descriptors."""
        return self._connections[rank].carries_fds

    def say_to(self, rank: int, message: Message, buffers: Sequence[memoryview] = (), fds: Sequence[int] = ()) -> None:
        """To a peer that waits for it, or will. The buffers must stay as they are until `flush`."""
        connection = self._connections[rank]
        try:
            if fds:
                connection.send_fds(message, fds, Deadline.after(self._stall, self._clock))
            else:
                connection.post(message, buffers)
        except PeerClosed as error:
            self._gone("passing a tensor", error.peer, str(error))

    def hear_from(
        self, rank: int, what: str, place: Callable[[Message], Sequence[memoryview]]
    ) -> tuple[Message, list[int]]:
        """The next message of a peer, and descriptors that came with it; the caller closes them."""
        connection = self._connections[rank]
        deadline = Deadline.after(self._stall, self._clock)
        begun = None
        try:
            while (heard := connection.try_receive_fds(place)) is None:
                if begun is None:
                    begun = self._clock.now()
                    self._on_wait(True, ())
                if deadline.passed():
                    raise self._late(what, (connection.peer,), self._stall)
                await_any([connection], self._unsent(), deadline, self._wakeup)
        except PeerClosed as error:
            self._gone(what, error.peer, str(error))
        if begun is not None:
            self._on_wait(False, [Waited(begun, self._clock.now())])
        if isinstance(heard[0], Aborted):
            self._gone(what, heard[0].members[0], heard[0].why)
        return heard

    def flush(self, what: str) -> None:
        """Until all that was said is on its way: an exchange among some would not look after what others are sent."""
        deadline = Deadline.after(self._stall, self._clock)
        try:
            while unsent := self._unsent():
                if deadline.passed():
                    raise self._late(what, tuple(connection.peer for connection in unsent), self._stall)
                await_any([], unsent, deadline, self._wakeup)
        except PeerClosed as error:
            self._gone(what, error.peer, str(error))

    def among(self, ranks: Sequence[int]) -> Messenger:
        """The same connections, for exchanges of some members: between two of all, and in the same order for each pair.

        It counts no traffic of its own, and is not closed.
        """
        members = tuple(self.members[rank] for rank in ranks)
        connections = {self.members[rank]: self._connections[rank] for rank in ranks if rank != self.rank}
        near = [place for place, rank in enumerate(ranks) if rank in self._neighbours]
        me = self.members[self.rank]
        return Messenger(
            self._view, members, me, connections, self._stall, self._wakeup, self._clock, self._on_wait, near, Traffic()
        )

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

    def _say(self, message: ExchangeMessage) -> None:
        for_neighbours = isinstance(message, TotalsArrived)
        for rank, connection in self._connections.items():
            if for_neighbours and rank not in self._neighbours:
                continue
            # What a peer said before it went still counts; reading to the end tells that it is gone.
            with suppress(PeerClosed):
                connection.post(message, self._beside(rank, message))

    def _beside(self, rank: int, message: ExchangeMessage) -> Sequence[memoryview]:
        if not isinstance(message, _LADEN) or message.exchange not in self._cargo:
            return ()
        return self._cargo[message.exchange].outgoing(rank, message)

    def _refuse(self, decision: Stale) -> None:
        connection = self._connections[self.members.index(decision.member)]
        with suppress(PeerClosed):
            connection.post(RefusePeer("stale view", decision.text))

    def _count_sent(self) -> None:
        sent = sum([connection.bytes_sent for connection in self._ranks])
        self.traffic.sent += sent - self._sent
        self._sent = sent

    def _received(self) -> int:
        return sum(connection.bytes_received for connection in self._ranks)

    def _is_arriving(self) -> bool:
        return any([connection.is_arriving for connection in self._ranks])  # noqa: C419 (half the time, at every wait)

    def _unsent(self) -> list[Connection]:
        return [connection for connection in self._ranks if connection.pending]

    def _awaited(self) -> list[Connection]:
        awaited = self._exchanges.awaited()
        return [self._connections[rank] for rank, name in enumerate(self.members) if name in awaited]

    # What is heard.

    def _hear_early(self) -> list[Decision]:
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
            if isinstance(message, RefusePeer):
                raise Refused(message.reason, f"{connection.peer} refused: {message.text}")
            if not isinstance(message, _HEARD):
                raise BadFrame(f"{connection.peer} sent {type(message).__name__} where none was expected")
            decisions += self._exchanges.handle(self.members[rank], message, self._clock.now())
            if not connection.buffered or self.members[rank] not in self._exchanges.awaited():
                return decisions

    def _place(self, rank: int, message: Message) -> Sequence[memoryview]:
        if not isinstance(message, _LADEN) or message.exchange not in self._cargo:
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
