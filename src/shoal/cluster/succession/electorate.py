"""Which hosts decide who coordinates a run, and how many of them are enough. Pure.

Any two sets of hosts that are enough have a host in common: so there are never two coordinators that both may decide.
That holds over a change of the electorate, too: while one changes, the old one and the new one must both agree.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class Electorate(msgspec.Struct, frozen=True):
    """Voters, one for each host. A host that comes back is another voter: the one it was has forgotten its votes."""

    voters: tuple[str, ...]
    before: tuple[str, ...] = ()  # while it changes: the voters that there were
    first_decides: bool = True  # of two halves, the one that has the first voter is enough

    def is_enough(self, of: Collection[str]) -> bool:
        """Whether these may decide for all."""
        return all(self._is_enough(group, of) for group in (self.voters, self.before) if group)

    def is_half(self, of: Collection[str]) -> bool:
        """Whether these would be enough if nobody else were left: nobody can tell that from here."""
        return all(2 * len(set(group) & set(of)) >= len(group) for group in (self.voters, self.before) if group)

    def everyone(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.voters, *self.before)))

    def changed(self, voters: tuple[str, ...]) -> Electorate:
        """On the way to these."""
        return Electorate(voters, self.voters, self.first_decides)

    def settled(self) -> Electorate:
        """The change is over: what the old electorate had to agree to is on record."""
        return Electorate(self.voters, (), self.first_decides)

    def _is_enough(self, group: tuple[str, ...], of: Collection[str]) -> bool:
        agreeing = set(group) & set(of)
        if 2 * len(agreeing) == len(group):
            return self.first_decides and group[0] in agreeing
        return 2 * len(agreeing) > len(group)


class RecordPosition(msgspec.Struct, frozen=True, order=True):
    """How far somebody's copy of the record goes. Of two, the one that compares greater has all that the other has.

    Within an epoch there is one coordinator, which numbers what it writes. The first that it writes in its epoch is
    everything, so a copy never has to be mended: it is replaced.
    """

    epoch: int = 0
    index: int = 0
