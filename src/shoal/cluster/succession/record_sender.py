"""A coordinator's links to the hosts that have copies of its record: sends what is new, hears what they have."""

from __future__ import annotations

import msgspec

from shoal.cluster.succession.record_copies import RecordCopies
from shoal.cluster.succession.succession_messages import (
    Follow,
    LauncherGone,
    RecordEntry,
    RecordKept,
    StillCoordinating,
)
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.wire.messages import Message

BEAT = 0.5  # seconds
LEASE = 2.0  # seconds: a coordinator that hosts which are enough have not answered for so long says nothing to any
MISSED = 2.0  # seconds after its start in which the hosts that are left have found a new coordinator
MISSED_ALONE = 1.0  # the same, where all others have found it: two announcements reach whoever is there
_CHUNK = 512 * 1024  # bytes of an entry in one message

Sending = tuple[int, Message]  # over which link, and what


class RecordSender:
    """Links are numbers: who made this sends what it gives. Without a clock of its own."""

    def __init__(self, start: SuccessionStart, now: float) -> None:
        self.epoch = start.epoch
        self._start = start
        self._copies = RecordCopies(start.epoch, start.electorate, now)
        self._copies.fence(start.fenced)
        self._seats = dict(start.seats)
        self._links: dict[str, int] = {}  # by voter
        self._began = self._beat_at = now
        self._heard_at = now  # when hosts that are enough were last heard
        self._missed: set[str] = set()
        self.deposed: str | None = None  # why this coordinator is none any more

    @property
    def committed(self) -> int:
        return self._copies.committed

    @property
    def index(self) -> int:
        return self._copies.index

    def is_voters(self, link: int) -> bool:
        return link in self._links.values()

    def append(self, content: bytes, anew: bool) -> list[Sending]:
        """It was written. It counts when `committed` has come to `index`."""
        self._copies.append(content, anew)
        return self._unsent()

    def add_result(self, call: int, result: bytes) -> list[Sending]:
        """What a call has returned. Workers repeat it to a coordinator that has not heard of it: nobody waits."""
        entry = RecordEntry(self.epoch, 0, self._copies.electorate, call=call)
        return [(link, part) for link in self._links.values() for part in _parts(entry, result)]

    def hear(self, link: int, message: Follow | RecordKept, now: float) -> tuple[list[Sending], bool]:
        """What to send, and whether this host has to be sent what calls have returned, too, before that."""
        if message.epoch > self.epoch:
            self.deposed = f"there is a coordinator of epoch {message.epoch}; this one was of epoch {self.epoch}"
            return [], False
        if isinstance(message, RecordKept):
            voter = next((voter for voter, its in self._links.items() if its == link), None)
            if voter is not None:
                self._copies.keep(voter, message.epoch, message.index, now)
            return [], False
        self._links[message.voter] = link
        self._seats[message.voter] = message.seat
        needs_all = self._copies.follow(message.voter, message.position, now)
        return self._unsent(), needs_all

    def lose(self, link: int) -> None:
        """It is closed."""
        for voter in [voter for voter, its in self._links.items() if its == link]:
            del self._links[voter]
            self._copies.lose(voter)

    def tick(self, now: float) -> list[Sending]:
        """Time has passed."""
        sendings: list[Sending] = []
        if (electorate := self._copies.next_electorate(now)) is not None:
            self._copies.change(electorate)
            sendings += self._unsent()
        if self._copies.is_heard(now, LEASE):
            self._heard_at = now
        if now >= self._beat_at and now - self._heard_at <= LEASE:
            self._beat_at = now + BEAT
            seats = {voter: self._seats[voter] for voter in self._copies.electorate.everyone() if voter in self._seats}
            sendings += [(link, StillCoordinating(self.epoch, seats)) for link in self._links.values()]
        return sendings

    def silent(self, now: float) -> list[int]:
        """Links over which nothing has come for so long that nothing will: close them."""
        return [self._links[voter] for voter in self._copies.silent(now) if voter in self._links]

    def unheard_for(self, now: float) -> float:
        """Seconds since hosts that are enough were last heard."""
        return now - self._heard_at

    def missing_places(self, now: float) -> set[str]:
        """Hosts that had workers when this coordinator took over, and have not found it: told once each."""
        gone = {voter for voter in self._seats if voter not in self._links and voter not in self._missed}
        if now - self._began < (MISSED_ALONE if len(gone) == 1 else MISSED) or self.epoch == 1:
            return set()
        self._missed |= set(self._seats)
        here = {self._seats[voter].place for voter in self._links}
        return {self._seats[voter].place for voter in gone} - here

    def say_launcher_gone(self) -> list[Sending]:
        return [(link, LauncherGone(self.epoch)) for link in self._links.values()]

    def _unsent(self) -> list[Sending]:
        return [
            (link, part)
            for voter, link in self._links.items()
            for entry in self._copies.unsent(voter)
            for part in _parts(entry, entry.content)
        ]


def _parts(entry: RecordEntry, content: bytes) -> list[RecordEntry]:
    """An entry as it travels: only the last part counts."""
    chunks = [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)] or [b""]
    *others, last = (msgspec.structs.replace(entry, content=chunk) for chunk in chunks)
    return [*(msgspec.structs.replace(part, index=0, more=True) for part in others), last]
