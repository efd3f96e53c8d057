"""A coordinator's view of the copies of its record: what is to be sent to whom, and what counts. Pure.

What a coordinator decides counts when hosts that are enough have it in their copies. Until then nobody is told: should
this coordinator lose its place, it has not happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.cluster.succession.electorate import Electorate, RecordPosition
from shoal.cluster.succession.succession_messages import RecordEntry

GONE = 10.0  # seconds after which a host that is not heard is voter no more, if the others can do without it


@dataclass(slots=True)
class _Copy:
    """On one host."""

    index: int = 0  # up to which it has it, in this epoch
    sent: int = 0
    heard: float = 0.0  # when, the last time
    is_linked: bool = False  # a link to a host that died without a word stays: it tells nothing


class RecordCopies:
    """Of one coordinator, in one epoch."""

    def __init__(self, epoch: int, electorate: Electorate, now: float) -> None:
        self.epoch = epoch
        self.electorate = electorate
        self._entries: list[RecordEntry] = []  # from the last that is everything
        self._index = 0
        self._settled = 0  # the index from which on the electorate is as it is
        self._copies = {voter: _Copy(heard=now) for voter in electorate.everyone()}
        self._fenced: set[str] = set()

    @property
    def index(self) -> int:
        """Of the last entry."""
        return self._index

    @property
    def committed(self) -> int:
        """Up to where it counts."""
        held = sorted({copy.index for copy in self._copies.values()}, reverse=True)
        return next((index for index in held if self._is_enough(self._holders(index))), 0)

    def append(self, content: bytes, anew: bool) -> RecordEntry:
        """It is the next entry; the first of an epoch is everything. Send `unsent` to all before the next one."""
        self._index += 1
        entry = RecordEntry(self.epoch, self._index, self.electorate, content, anew)
        if anew:
            self._entries.clear()
        self._entries.append(entry)
        return entry

    def follow(self, voter: str, position: RecordPosition, now: float) -> bool:
        """A host wants it. Whether it needs everything; else what is new to it is enough."""
        copy = self._copies.setdefault(voter, _Copy())
        copy.heard, copy.is_linked = now, True
        first = self._entries[0].index if self._entries else 1
        follows_on = position.epoch == self.epoch and first - 1 <= position.index <= self._index
        copy.index = copy.sent = position.index if follows_on else 0
        return not follows_on

    def keep(self, voter: str, epoch: int, index: int, now: float) -> None:
        """A host has it up to there, or is merely heard."""
        copy = self._copies.get(voter)
        if copy is not None and epoch == self.epoch:
            copy.heard = now
            copy.index = max(copy.index, min(index, copy.sent))

    def lose(self, voter: str) -> None:
        """Its link is gone. What it has, it has."""
        if voter in self._copies:
            self._copies[voter].is_linked = False

    def silent(self, now: float) -> list[str]:
        """Whose link is there, but who has not been heard for so long that it counts as lost: close it."""
        return [id for id, copy in self._copies.items() if copy.is_linked and now - copy.heard > GONE]

    def fence(self, voters: tuple[str, ...]) -> None:
        """Somebody has seen to it that these are dead."""
        self._fenced |= set(voters)

    def unsent(self, voter: str) -> list[RecordEntry]:
        """What is to be sent to this host now; it counts as sent."""
        copy = self._copies[voter]
        if not copy.is_linked:
            return []
        entries = [entry for entry in self._entries if entry.index > copy.sent]
        copy.sent = self._index
        return entries

    def is_heard(self, now: float, within: float) -> bool:
        """Whether hosts that are enough have been heard lately. If not, another coordinator may be about to come."""
        return self._is_enough(self.heard(now, within))

    def heard(self, now: float, within: float) -> set[str]:
        """Who has been heard lately, and can be."""
        return {id for id, copy in self._copies.items() if copy.is_linked and now - copy.heard <= within}

    def next_electorate(self, now: float) -> Electorate | None:
        """What the electorate is to become now, if anything: write it down with `change`. One change at a time."""
        if self._index == 0 or self.committed < self._settled:
            return None
        if self.electorate.before:
            return self.electorate.settled()
        voters = self.electorate.voters
        lost = {voter for voter in voters if now - self._copies[voter].heard > GONE}
        heard = self.heard(now, GONE)
        here = [voter for voter in self._copies if voter in heard]  # in the order in which they came
        stay = tuple(voter for voter in voters if voter not in lost)
        wanted = (*stay, *(voter for voter in here if voter not in voters))
        may = self.electorate.changed(wanted)
        return may if wanted != voters and stay and may.is_enough({*here, *self._fenced}) else None

    def change(self, electorate: Electorate) -> RecordEntry:
        """From this entry on."""
        self.electorate = electorate
        for voter in [voter for voter in self._copies if voter not in electorate.everyone()]:
            if not self._copies[voter].is_linked:
                del self._copies[voter]
        entry = self.append(b"", anew=False)
        self._settled = entry.index
        return entry

    def _holders(self, index: int) -> set[str]:
        return {voter for voter, copy in self._copies.items() if copy.index >= index}

    def _is_enough(self, voters: set[str]) -> bool:
        return self.electorate.is_enough(voters | self._fenced)
