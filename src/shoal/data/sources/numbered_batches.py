"""What data sets of batches by number share, whether they give whole batches or some of their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.data.order import Indices, permutation
from shoal.data.sources.passes import Passes
from shoal.data.sources.read_ahead import ReadAhead
from shoal.data.sources.shares import Spec
from shoal.data.sources.source import AbstractSource, Wanted, every_step

Ahead = TypeVar("Ahead")  # what is read before its step


@dataclass(frozen=True)
class BatchSeries:
    """Batches by number, without what is in them. `count` is None where there is always another one."""

    spec: Spec
    count: int | None
    seed: int | None  # of their order; None: by number
    steps: int | None = None  # of an epoch
    on_epoch_begin: Callable[[], object] = lambda: None
    on_epoch_end: Callable[[], object] = lambda: None
    threads: int = 1
    seen: bytes = b""  # a digest of what was looked at to learn what batches are like


class AbstractNumberedBatches(AbstractSource, Generic[Ahead]):
    """Batches by number; the next ones are loaded while a step computes."""

    def __init__(self, series: BatchSeries) -> None:
        self._series = series
        self._seed = series.seed
        self._passes = Passes(series.count, series.steps)
        self._order: Indices | None = None
        self._ahead: ReadAhead[Ahead] = ReadAhead(series.threads, "shoal-batches")

    @property
    def steps(self) -> int | None:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._series.spec

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        if self._seed is not None and self._series.count is not None:
            self._order = permutation(self._seed, self._passes.number, self._series.count)
        self._series.on_epoch_begin()
        self._ahead.begin(filter(wanted, self._passes.later(first)))

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def again(self, step: int) -> None:
        self._ahead.begin(self._passes.later(step))

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def names(self, step: int, rows: range) -> str:
        return f"rows {rows.start} to {rows.stop - 1} of batch {self._number(step)}"

    def extent(self) -> bytes:
        return str(self._series.count).encode()

    def sample(self) -> bytes:
        return self._series.seen

    def end(self, steps: int) -> None:
        self._series.on_epoch_end()

    def close(self) -> None:
        self._ahead.close()

    def _number(self, step: int) -> int:
        batch = self._passes.batch(step) or 0
        return batch if self._order is None else int(self._order[batch])
