"""Data sets that give single samples by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.data.columns import Rows
from shoal.data.order import Indices, permutation
from shoal.data.sources.naming import noting, samples
from shoal.data.sources.passes import Passes
from shoal.data.sources.rank import Rank
from shoal.data.sources.read_ahead import ReadAhead
from shoal.data.sources.shares import Spec, Split, Taken, empty_rows, samples_of
from shoal.data.sources.source import AbstractSource, Wanted, every_step
from shoal.errors import CannotDistribute


class Items(AbstractSource):
    """A map-style data set: `load(indices)` collates just the samples asked for. It reads ahead."""

    def __init__(
        self,
        load: Callable[[Sequence[int]], Rows],
        spec: Spec,
        count: int,
        batch_size: int,
        seed: int | None,
        drop_last: bool,
        steps: int | None = None,
        threads: int = 1,
        whole_batches: bool = False,
        seen: bytes = b"",
    ) -> None:
        self._load = load
        self._seen = seen  # a digest of what was looked at to learn what its samples are like
        self._whole_batches = whole_batches  # load all of a batch and keep the own rows
        self._spec = spec
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        whole, rest = divmod(count, batch_size)
        self._passes = Passes(whole + (1 if rest and not drop_last else 0), steps)
        self._order: Indices = np.arange(count)
        self._ahead: ReadAhead[tuple[range, Rows]] = ReadAhead(threads, "shoal-items")

    @property
    def steps(self) -> int | None:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        if self._seed is not None:
            self._order = permutation(self._seed, self._passes.number, self._count)
        self._ahead.begin(filter(wanted, self._passes.later(first)))

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def again(self, step: int) -> None:
        self._ahead.begin(self._passes.later(step))

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        bounds = self._bounds(step)
        if bounds is None:
            return None
        size = len(bounds)
        mine = split(size)[place.rank]

        def load(later: int) -> tuple[range, Rows]:
            there = self._bounds(later)
            held = split(len(there))[place.rank] if there is not None else range(0)
            return held, self._rows(there, held) if there is not None else []

        held, rows = self._ahead.take(step, load)
        if held != mine:  # the shares have changed since it was read ahead
            rows = self._rows(bounds, mine)
        return Taken(size, mine.start, rows)

    def names(self, step: int, rows: range) -> str:
        own = (self._bounds(step) or range(0))[rows.start : rows.stop]
        return samples(self._order[own.start : own.stop])

    def close(self) -> None:
        self._ahead.close()

    def whole(self, step: int) -> Taken | None:
        bounds = self._bounds(step)
        if bounds is None:
            return None
        return Taken(len(bounds), 0, self._rows(bounds, range(len(bounds))))

    def _bounds(self, step: int) -> range | None:
        """The places in the epoch's order that a step takes."""
        batch = self._passes.batch(step)
        if batch is None:
            return None
        return range(batch * self._batch_size, min((batch + 1) * self._batch_size, self._count))

    def _rows(self, places: range, held: range) -> Rows:
        if not held:
            return empty_rows(self._spec)
        own = places if self._whole_batches else places[held.start : held.stop]
        indices = self._order[own.start : own.stop].tolist()
        with noting(lambda: f"loading {samples(indices)}"):
            rows = self._load(indices)
        if any(len(row) != len(own) for row in rows):
            raise CannotDistribute(
                f"{len(own)} samples were collated into arrays of {', '.join(str(len(row)) for row in rows)} rows; "
                "expected one row per sample, as in the first batch"
            )
        return samples_of(rows, held, True) if self._whole_batches else rows

    def extent(self) -> bytes:
        return str(self._count).encode()

    def sample(self) -> bytes:
        return self._seen
