"""One member's side of the exchanges of a view. Pure: messages and the time in, decisions out.

An exchange has one, two or four rounds. In the first everyone says Published; an exchange of one round commits when
all have. In an exchange of two, each then reduces its slice, says Reduced, and commits when all have:

    begin ──► Say(Published) ··all published··► Reduce ──reduced()──► Say(Reduced) ··all reduced··► Commit
                                            └─► Commit (one round)

One of four rounds is for members of several hosts (two_level.py). The members of a host are neighbours:

    Say(Published) ··neighbours published··► Sum ──summed()──► Say(Summed) ··all published and summed··► Reduce
    ──reduced()──► Say(Reduced) ··all reduced··► Say(TotalsArrived) to neighbours ··neighbours have them··► Commit

Rules
- A peer may be one exchange ahead: it has committed what this member is about to commit. What it says then is
  left unread, on its connection, until this member comes there too: only those in `awaited()` are to be heard.
  A message with another number than the exchange's own is a broken peer's.
- All must mean the same by a number: the same `what`, the same pieces, each the run that all others believe
  it holds. Otherwise the scripts have diverged, and the error names both sides.
- A lost member aborts an exchange only while something of it is awaited; the next exchange aborts at once. Who
  aborts tells all others who was lost, so that nobody mistakes the messenger's leaving for the cause.
- Nobody waits longer than `patience` in one round. Those who are furthest back are who did not come: all others may
  be waiting for them.
- After Abort, Late, Mismatch or Broken there are no further exchanges in this view.
"""

from __future__ import annotations

from collections.abc import Set
from enum import IntEnum
from typing import NamedTuple

from shoal.collectives.messages import Aborted, Reduced, SlotsPublished, Summed, TotalsArrived

Message = SlotsPublished | Summed | Reduced | TotalsArrived | Aborted
_DONE = (Summed, Reduced, TotalsArrived)  # a tuple: an exchange asks several times, and a union is made anew each time
_Stages = list[tuple[Set[str], Set[str]]]


class Rounds(IntEnum):
    """How many rounds an exchange has."""

    NOTES = 1  # only notes, or a vector that everyone adds up for itself
    SLICES = 2  # everyone adds up a slice of the vector
    HOSTS = 4  # first within each host, then between hosts


class Lost(NamedTuple):
    """Event: nothing more will come from this member."""

    why: str


class SayToPeer(NamedTuple):
    """Decision: send this to every peer; TotalsArrived only to those of the own host."""

    message: Message


class Sum(NamedTuple):
    """Decision: the neighbours' parts are there; add up what crosses to other hosts, then call `summed`."""


class Reduce(NamedTuple):
    """Decision: everyone's part is there; add up the own slice, then call `reduced`."""


class Commit(NamedTuple):
    """Decision: the exchange counts. Everyone's notes, by rank."""

    notes: list[bytes]


class Abort(NamedTuple):
    """Decision: the exchange can't commit in this view, because these members are lost."""

    members: tuple[str, ...]
    why: str


class Late(NamedTuple):
    """Decision: the round lasted too long; these did not come."""

    members: tuple[str, ...]
    waited: float


class Mismatch(NamedTuple):
    """Decision: the members' scripts have diverged."""

    text: str


class Broken(NamedTuple):
    """Decision: this peer broke the protocol."""

    member: str
    text: str


class Stale(NamedTuple):
    """Decision: refuse this message; its sender is in another view."""

    member: str
    text: str


Decision = SayToPeer | Sum | Reduce | Commit | Abort | Late | Mismatch | Broken | Stale


class ExchangeWork(NamedTuple):
    """What an exchange adds up: the memory it uses, the step's pieces and every rank's run of them."""

    exchange: int
    pieces: int
    shares: tuple[range, ...]


class Exchanges:
    """All exchanges of one view, one after another, as one member sees them."""

    def __init__(
        self, view: int, members: tuple[str, ...], me: str, patience: float, neighbours: Set[str] = frozenset()
    ) -> None:
        self._view = view
        self._members = members
        self._me = me
        self._patience = patience
        self._peers = frozenset(members) - {me}
        self._awaited: set[str] = set()
        self._lost: dict[str, str] = {}
        self._neighbours = frozenset(neighbours) | {me}
        self._published: dict[str, SlotsPublished] = {}
        self._summed: set[str] = set()
        self._reduced: set[str] = set()
        self._arrived: set[str] = set()
        # By rounds, in order: who has said what is to be said, and who is to. They see the sets above as they change.
        everyone = frozenset(members)
        published, reduced = (self._published.keys(), everyone), (self._reduced, everyone)
        on_hosts: _Stages = [published, (self._summed, everyone), reduced, (self._arrived, self._neighbours)]
        self._stages_of: dict[Rounds, _Stages] = {
            Rounds.NOTES: [published],
            Rounds.SLICES: [published, reduced],
            Rounds.HOSTS: on_hosts,
        }
        self._number = 0
        self._what = ""
        self._work: ExchangeWork | None = None
        self._rounds = Rounds.NOTES
        self._stages: _Stages = []
        self._round = 0  # 0: between exchanges
        self._since = 0.0
        self._over: Decision | None = None

    @property
    def number(self) -> int:
        """The number of the exchange that is going on, or was the last."""
        return self._number

    def begin(
        self, what: str, note: bytes, now: float, work: ExchangeWork | None = None, rounds: Rounds = Rounds.NOTES
    ) -> list[Decision]:
        """Come to the next exchange. The first decision is to say so, even if it can't commit any more."""
        if self._round:
            raise RuntimeError(f"{what}: the exchange {self._what!r} has not ended yet")
        if self._over is not None:
            return [self._over]
        self._number += 1
        self._what, self._work, self._rounds = what, work, rounds
        self._round, self._since = 1, now
        mine = self._my_word(note)
        self._published.clear()
        self._published[self._me] = mine
        self._summed.clear()
        self._reduced.clear()
        self._arrived.clear()
        self._stages = self._stages_of[rounds]
        self._awaited = set(self._peers)
        return [SayToPeer(mine), *self._progress(now)]

    def handle(self, sender: str, event: Message | Lost, now: float) -> list[Decision]:
        """Take what came from, or became of, a peer."""
        if self._over is not None:
            return []
        if isinstance(event, Lost):
            self._lost.setdefault(sender, event.why)
            return self._progress(now)
        if event.view != self._view:
            text = f"{sender} is in view {event.view}, {self._me} in view {self._view}"
            return [Stale(sender, text)]
        if isinstance(event, SlotsPublished):
            return self._take_published(sender, event, now)
        if isinstance(event, _DONE):
            return self._take_done(sender, event, now)
        return self._abort(event.members, event.why)

    def summed(self, sums: int, now: float) -> list[Decision]:
        """What crosses to other hosts is added up: so many partial sums."""
        self._summed.add(self._me)
        self._since = now
        exchange = self._work.exchange if self._work else 0
        return [SayToPeer(Summed(self._view, self._number, exchange, sums)), *self._progress(now)]

    def reduced(self, now: float) -> list[Decision]:
        """The own slice is added up. The peers have a whole round's patience for theirs from now on."""
        self._reduced.add(self._me)
        self._since = now
        exchange = self._work.exchange if self._work else 0
        return [SayToPeer(Reduced(self._view, self._number, exchange)), *self._progress(now)]

    def tick(self, now: float) -> list[Decision]:
        """Call it at `deadline()`: says who is late, if anybody is."""
        if not self._round or self._over is not None or now < self.deadline():
            return []
        return self._end(Late(self.waiting_for(), now - self._since))

    def deadline(self) -> float:
        """When the round that is going on has lasted too long."""
        return self._since + self._patience

    def awaited(self) -> Set[str]:
        """The peers that have not said all that the exchange needs, in this round or the next."""
        return self._awaited

    def waiting_for(self) -> tuple[str, ...]:
        """The peers that keep this round from ending, by rank: those who are furthest back."""
        if not self._round:
            return ()
        for came, expected in self._stages:
            missing = expected - came - {self._me}
            if missing:
                return tuple(member for member in self._members if member in missing)
        return ()

    def _my_word(self, note: bytes) -> SlotsPublished:
        if self._work is None:
            return SlotsPublished(self._view, self._number, self._what, note)
        held = self._work.shares[self._members.index(self._me)]
        return SlotsPublished(
            self._view,
            self._number,
            self._what,
            note,
            self._work.exchange,
            self._work.pieces,
            held.start,
            held.stop,
        )

    def _take_published(self, sender: str, word: SlotsPublished, now: float) -> list[Decision]:
        if word.number == self._number and self._round and sender not in self._published:
            self._published[sender] = word
            self._cross_off(sender)
            return [*self._check(sender, word), *self._progress(now)]
        return self._end(Broken(sender, self._out_of_order(sender, word)))

    def _take_done(self, sender: str, word: Summed | Reduced | TotalsArrived, now: float) -> list[Decision]:
        # It may come before another peer's word of an earlier round: it tells that its sender has that one already.
        expected = self._round and word.number == self._number
        if not expected or not self._is_next(sender, word):
            return self._end(Broken(sender, self._out_of_order(sender, word)))
        if isinstance(word, Reduced):
            self._reduced.add(sender)
        elif isinstance(word, Summed):
            self._summed.add(sender)
        else:
            self._arrived.add(sender)
        self._cross_off(sender)
        return self._progress(now)

    def _is_next(self, sender: str, word: Summed | Reduced | TotalsArrived) -> bool:
        """Whether this is what the sender has to say after all that it has said."""
        hosts = self._rounds is Rounds.HOSTS
        if isinstance(word, Reduced):
            before = self._summed if hosts else self._published
            return self._rounds is not Rounds.NOTES and sender in before and sender not in self._reduced
        if isinstance(word, Summed):
            return hosts and sender in self._published and sender not in self._summed
        return hosts and sender in self._neighbours & self._reduced and sender not in self._arrived

    def _cross_off(self, sender: str) -> None:
        """A peer that has said everything is awaited no longer."""
        for came, expected in self._stages:
            if sender not in came and sender in expected:
                return
        self._awaited.discard(sender)

    def _progress(self, now: float) -> list[Decision]:
        if not self._round or self._over is not None:
            return []
        if self._lost and self._awaited & self._lost.keys():
            missing = tuple(member for member in self._members if member in self._awaited & self._lost.keys())
            return self._abort(missing, "; ".join(self._lost[member] for member in missing))
        if self._rounds is Rounds.HOSTS:
            return self._progress_of_hosts(now)
        if self._round == 1 and len(self._published) == len(self._members):
            if self._rounds is Rounds.NOTES:
                return self._commit()
            self._round, self._since = 2, now
            return [Reduce()]
        if self._round == 2 and len(self._reduced) == len(self._members):
            return self._commit()
        return []

    def _progress_of_hosts(self, now: float) -> list[Decision]:
        if self._round == 1 and self._neighbours <= self._published.keys():
            self._round, self._since = 2, now
            return [Sum()]
        if self._round == 2 and len(self._published) == len(self._summed) == len(self._members):
            self._round, self._since = 3, now
            return [Reduce()]
        if self._round == 3 and len(self._reduced) == len(self._members):
            self._round, self._since = 4, now
            self._arrived.add(self._me)
            return [SayToPeer(TotalsArrived(self._view, self._number)), *self._progress(now)]
        if self._round == 4 and self._neighbours <= self._arrived:
            return self._commit()
        return []

    def _commit(self) -> list[Decision]:
        self._round = 0
        return [Commit([self._published[member].note for member in self._members])]

    def _abort(self, members: tuple[str, ...], why: str) -> list[Decision]:
        return [SayToPeer(Aborted(self._view, members, why)), *self._end(Abort(members, why))]

    def _end(self, decision: Decision) -> list[Decision]:
        self._round = 0
        self._awaited = set()
        self._over = decision
        return [decision]

    def _check(self, sender: str, word: SlotsPublished) -> list[Decision]:
        """Whether a peer means the same by this exchange's number."""
        if word.what != self._what:
            # By rank, so that both sides say the same.
            first, second = sorted(
                ((self._me, self._what), (sender, word.what)), key=lambda p: self._members.index(p[0])
            )
            return self._end(
                Mismatch(
                    f"the scripts have diverged: {first[0]} is at {first[1]!r}, {second[0]} at {second[1]!r} "
                    f"(exchange {self._number} of view {self._view}). Every worker must make the same calls "
                    "in the same order: do not make them depend on the rank."
                )
            )
        pieces, held, exchange = 0, range(0), 0
        if self._work is not None:
            pieces, held = self._work.pieces, self._work.shares[self._members.index(sender)]
            exchange = self._work.exchange
        if (word.exchange, word.pieces, word.first, word.stop) != (exchange, pieces, held.start, held.stop):
            return self._end(
                Mismatch(
                    f"{self._what}: {sender} says that it holds the pieces {word.first} to {word.stop} of "
                    f"{word.pieces}; {self._me} expects {held.start} to {held.stop} of {pieces}"
                )
            )
        return []

    def _out_of_order(self, sender: str, word: SlotsPublished | Summed | Reduced | TotalsArrived) -> str:
        return (
            f"{sender} sent {type(word).__name__} of exchange {word.number}, which was not expected: "
            f"{self._me} is in round {self._round} of exchange {self._number} ({self._what!r})"
        )
