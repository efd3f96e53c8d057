"""Data sets that give whole batches by number."""

from __future__ import annotations

from collections.abc import Callable

from shoal.data.columns import Rows
from shoal.data.sources.naming import noting
from shoal.data.sources.numbered_batches import AbstractNumberedBatches, BatchSeries
from shoal.data.sources.rank import Rank
from shoal.data.sources.shares import Split, Taken, share


class Batches(AbstractNumberedBatches[Rows]):
    """A data set of whole batches, by number: `load` gives one."""

    def __init__(self, load: Callable[[int], Rows], series: BatchSeries) -> None:
        super().__init__(series)
        self._load = load

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        if self._passes.batch(step) is None:
            return None

        def load(later: int) -> Rows:
            with noting(lambda: f"loading batch {self._number(later)}"):
                return self._load(self._number(later))

        rows = self._ahead.take(step, load)
        return share(rows, split, place.rank)

    def whole(self, step: int) -> Taken | None:
        if self._passes.batch(step) is None:
            return None
        with noting(lambda: f"loading batch {self._number(step)}"):
            rows = self._load(self._number(step))
        return share(rows, lambda size: [range(size)], 0)
