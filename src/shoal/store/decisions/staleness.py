"""Whether a worker may begin its next update, so that none is ever staler than the bound. Pure.

The staleness of an update is the largest number, over the other workers, of that worker's updates that were applied
before it and are not in the weights it was computed from. (On each shard; an update's is the largest of them.)

An update begins before its weights are pulled and is finished when every shard has acknowledged it. The clock knows
no more than that, so it assumes the worst: that weights are pulled the moment their update begins, with nothing in
them but what was finished by then, and that the update is applied after everything else that has begun.

    a    ├────────────── u ─────────────┤
    b  ────┤├─ 1 ─┤├─ 2 ─┤                     with K = 3, b may not begin its update 3 before u is finished: its
                                               update 0 was not finished either when u began

Two rules keep the bound K:
1. A worker begins an update only if, with it, at most K of its updates are not in the weights of any other worker's
   unfinished update.
2. A worker has at most K unfinished updates (at least one). Without this rule one that works ahead of its
   acknowledgements could keep the others from ever beginning: K + 1 unfinished updates are too many for their weights.

Whoever waits by rule 1 waits for an update that has begun and needs nobody's leave to finish: so somebody can always
go on. With a bound of at least one nobody starves either: updates that begin after a worker's last one was finished
leave room for another. With K = 0 the workers take turns, and the shell serves them in the order in which they asked.
(A round in which all compute from the same weights, one update each, has a staleness of 1 unless it is added up and
applied as one update. That is what synchronous training does; it needs no clock.)

A lost worker blocks nobody. What it had begun may still arrive, at a replica that has not heard of the loss: but only
before any update that began after the loss, because those carry the new view and are not taken before it. One that has
merely stalled does hold the others back, for its update may come at any moment: where that is not to last longer than
a lease, whoever lets its lease end is to be declared lost.

The clock is a Struct: encode it to write it down, decode it to go on from there.
"""

from __future__ import annotations

import msgspec

from shoal.errors import UsageError


class StalenessPace(msgspec.Struct):
    """How far one worker is."""

    begun: int = 0
    finished: int = 0
    # The unfinished ones by number; each with how many updates of every worker were finished when it began.
    unfinished: dict[int, dict[str, int]] = {}


class StalenessClock(msgspec.Struct):
    """The workers' updates, begun and finished. `bound` None: no update waits for another."""

    bound: int | None
    paces: dict[str, StalenessPace] = {}
    observed: dict[int, int] = {}  # staleness -> how many updates had it

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise UsageError(f"a staleness of {self.bound} can't be kept: expected 0, a number of updates, or inf")

    def join(self, worker: str) -> None:
        """A worker has come, or has come back: it has nothing unfinished."""
        self.paces.setdefault(worker, StalenessPace())

    def lose(self, worker: str) -> None:
        """A worker is lost: its unfinished updates will not be applied in any later view."""
        pace = self.paces[worker]
        # All that it began may have been applied, and nothing more will be.
        pace.finished, pace.unfinished = pace.begun, {}

    def waits_for(self, worker: str) -> tuple[str, ...]:
        """Whose unfinished updates keep this worker from beginning one. Empty: it may begin."""
        if self.bound is None:
            return ()
        mine = self.paces[worker]
        if len(mine.unfinished) >= max(1, self.bound):
            return (worker,)
        oldest = mine.begun + 1 - self.bound  # what other workers' weights must contain of mine
        return tuple(
            other
            for other, pace in self.paces.items()
            if other != worker and any(seen.get(worker, 0) < oldest for seen in pace.unfinished.values())
        )

    def begin(self, worker: str) -> int:
        """A worker begins an update: the number that it is to be finished with."""
        if waits := self.waits_for(worker):
            raise RuntimeError(f"{worker} began an update while it has to wait for {', '.join(waits)}")
        pace = self.paces[worker]
        number = pace.begun
        pace.begun += 1
        pace.unfinished[number] = {other: it.finished for other, it in self.paces.items() if other != worker}
        return number

    def finish(self, worker: str, number: int, staleness: int | None) -> None:
        """Every shard has acknowledged it; `staleness` is the largest seen. Not heeded of a worker that is lost."""
        pace = self.paces[worker]
        if pace.unfinished.pop(number, None) is None:
            return
        pace.finished += 1
        if staleness is not None:
            self.observed[staleness] = self.observed.get(staleness, 0) + 1

    @property
    def stalest(self) -> int:
        """The largest staleness observed so far."""
        return max(self.observed, default=0)
