"""When the workers' shares of the pieces have changed so much that somebody may want to know. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 1 / 8  # of all pieces that have moved
EVERY = 100  # steps between two lines, at least
_NAMED = 6  # workers


class ShareNews:
    """Hears of each step's shares; says what is different from what it has said, now and then."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._told: tuple[int, ...] = ()  # pieces of each, as they were told last
        self._again = 0  # the step from which on it may tell again

    def of(self, members: tuple[str, ...], held: Sequence[tuple[int, int]], step: int) -> str:
        """After a step in which each of the members computed these pieces; empty if there is nothing to tell."""
        counts = tuple(stop - start for start, stop in held)
        # Who takes part, and how many pieces there are, is told elsewhere.
        if members != self._members or sum(counts) != sum(self._told):
            self._members, self._told, self._again = members, counts, step
            return ""
        if counts == self._told or step < self._again:
            return ""
        changes = [
            (after - before, member, after, before)
            for member, after, before in zip(members, counts, self._told, strict=True)
            if after != before
        ]
        if sum(abs(change) for change, *_ in changes) < 2 * LEAST * sum(counts):
            return ""
        self._told, self._again = counts, step + EVERY
        changes.sort(key=lambda one: -abs(one[0]))
        told = [f"{member} computes {after}, not {before}" for _, member, after, before in changes[:_NAMED]]
        more = f"; and {len(changes) - _NAMED} others" if len(changes) > _NAMED else ""
        return f"of {sum(counts)} pieces {'; '.join(told)}{more}: as their speeds are"
