"""Arrays in memory."""

from __future__ import annotations

import numpy as np

from shoal.data.columns import Rows
from shoal.data.order import Indices, permutation
from shoal.data.sources.naming import samples
from shoal.data.sources.passes import Passes
from shoal.data.sources.rank import Rank
from shoal.data.sources.shares import Spec, Split, Taken, digest_of
from shoal.data.sources.source import AbstractSource, Wanted, every_step
from shoal.data.structure import Skeleton

_SAMPLED = 16  # rows that workers compare to notice that they hold other data


class Arrays(AbstractSource):
    """Arrays in memory, by row."""

    def __init__(
        self,
        rows: Rows,
        skeleton: Skeleton,
        batch_size: int,
        seed: int | None,
        within_batches: bool = False,
        steps: int | None = None,
    ) -> None:
        self.rows = rows
        self.batch_size = batch_size
        self._spec = Spec.of(rows, skeleton)
        self._count = len(rows[0])
        self._seed = seed
        self._within_batches = within_batches  # shuffle the samples of each batch among themselves only
        self._steps = steps
        self._passes = Passes(-(-self._count // batch_size), steps)
        self._order: Indices | None = None

    @property
    def steps(self) -> int | None:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def with_rows(self, rows: Rows, skeleton: Skeleton, batch_size: int) -> Arrays:
        """Other arrays, used as these were to be."""
        return Arrays(rows, skeleton, batch_size, self._seed, self._within_batches, self._steps)

    def extent(self) -> bytes:
        return self.sample()

    def sample(self) -> bytes:
        places = np.linspace(0, self._count - 1, _SAMPLED).astype(int)
        return digest_of([row[place : place + 1] for place in places for row in self.rows], self._count)

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        self._shuffle()

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        batch = self._passes.batch(step)
        if batch is None:
            return None
        low = batch * self.batch_size
        high = min(low + self.batch_size, self._count)
        mine = split(high - low)[place.rank]
        if self._order is None:
            rows = [row[low + mine.start : low + mine.stop] for row in self.rows]
        else:
            indices = self._order[low + mine.start : low + mine.stop]
            rows = [row[indices] for row in self.rows]
        return Taken(high - low, mine.start, rows)

    def names(self, step: int, rows: range) -> str:
        low = (self._passes.batch(step) or 0) * self.batch_size
        places = range(low + rows.start, low + rows.stop)
        return samples(places if self._order is None else self._order[places.start : places.stop])

    def _shuffle(self) -> None:
        if self._seed is None:
            return
        order = permutation(self._seed, self._passes.number, self._count)
        if self._within_batches:
            order = np.lexsort((order, np.arange(self._count) // self.batch_size))
        self._order = order
