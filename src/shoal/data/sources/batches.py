"""Data sets that give whole batches by number."""

from __future__ import annotations

from collections.abc import Callable

from shoal.data.columns import Rows
from shoal.data.order import Indices, permutation
from shoal.data.sources.naming import noting
from shoal.data.sources.passes import Passes
from shoal.data.sources.rank import Rank
from shoal.data.sources.read_ahead import ReadAhead
from shoal.data.sources.shares import Spec, Split, Taken, share
from shoal.data.sources.source import AbstractSource, Wanted, every_step


class Batches(AbstractSource):
    """A data set of whole batches, by number. The next ones are loaded while a step computes.

    `count` is None where there is always another one.
    """

    def __init__(
        self,
        load: Callable[[int], Rows],
        spec: Spec,
        count: int | None,
        seed: int | None,
        steps: int | None = None,
        on_epoch_begin: Callable[[], object] = lambda: None,
        on_epoch_end: Callable[[], object] = lambda: None,
        threads: int = 1,
        seen: bytes = b"",
    ) -> None:
        self._load = load
        self._spec = spec
        self._seen = seen  # a digest of the batch that was looked at to learn what batches are like
        self._count = count
        self._seed = seed
        self._on_epoch_begin = on_epoch_begin
        self._on_epoch_end = on_epoch_end
        self._passes = Passes(count, steps)
        self._order: Indices | None = None
        self._ahead: ReadAhead[Rows] = ReadAhead(threads, "shoal-batches")

    @property
    def steps(self) -> int | None:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        if self._seed is not None and self._count is not None:
            self._order = permutation(self._seed, self._passes.number, self._count)
        self._on_epoch_begin()
        self._ahead.begin(filter(wanted, self._passes.later(first)))

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

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

    def names(self, step: int, rows: range) -> str:
        return f"rows {rows.start} to {rows.stop - 1} of batch {self._number(step)}"

    def _number(self, step: int) -> int:
        batch = self._passes.batch(step) or 0
        return batch if self._order is None else int(self._order[batch])

    def extent(self) -> bytes:
        return str(self._count).encode()

    def sample(self) -> bytes:
        return self._seen

    def end(self, steps: int) -> None:
        self._on_epoch_end()

    def close(self) -> None:
        self._ahead.close()
