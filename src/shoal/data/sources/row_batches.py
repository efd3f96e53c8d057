"""Data sets that give some rows of a batch by number."""

from __future__ import annotations

from collections.abc import Callable

from shoal.data.columns import Rows
from shoal.data.sources.naming import noting
from shoal.data.sources.numbered_batches import AbstractNumberedBatches, BatchSeries
from shoal.data.sources.rank import Rank
from shoal.data.sources.shares import Split, Taken, empty_rows
from shoal.errors import CannotDistribute


class RowBatches(AbstractNumberedBatches[tuple[range, Rows]]):
    """Batches by number, of which a worker loads its own rows only.

    `size(index)` is the number of rows of a batch, `load(index, rows)` gives some of them.
    """

    def __init__(self, size: Callable[[int], int], load: Callable[[int, range], Rows], series: BatchSeries) -> None:
        super().__init__(series)
        self._size = size
        self._load = load

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        if self._passes.batch(step) is None:
            return None
        size = self._size(self._number(step))
        mine = split(size)[place.rank]

        def load(later: int) -> tuple[range, Rows]:
            held = split(self._size(self._number(later)))[place.rank]
            return held, self._rows(later, held)

        held, rows = self._ahead.take(step, load)
        if held != mine:  # the shares have changed since it was read ahead
            rows = self._rows(step, mine)
        return Taken(size, mine.start, rows)

    def whole(self, step: int) -> Taken | None:
        if self._passes.batch(step) is None:
            return None
        size = self._size(self._number(step))
        return Taken(size, 0, self._rows(step, range(size)))

    def _rows(self, step: int, held: range) -> Rows:
        if not held:
            return empty_rows(self.spec())
        number = self._number(step)
        with noting(lambda: f"loading rows {held.start} to {held.stop - 1} of batch {number}"):
            rows = self._load(number, held)
        if any(len(row) != len(held) for row in rows):
            raise CannotDistribute(
                f"rows {held.start} to {held.stop - 1} of batch {number} were asked for, and arrays of "
                f"{', '.join(str(len(row)) for row in rows)} rows came; expected {len(held)} of each"
            )
        return rows
