"""Data of which only the chief's counts."""

from __future__ import annotations

from shoal.data.sources.rank import ALONE, Rank
from shoal.data.sources.shares import Spec, Split, Taken, hand_out
from shoal.data.sources.source import AbstractSource, Wanted, every_step


class HandedOut(AbstractSource):
    """A source that the chief alone takes from, to hand everyone their rows: for data that the others have otherwise.

    If the chief dies, the next one goes on with its own.
    """

    def __init__(self, what: str, inner: AbstractSource, spec: Spec, steps: int | None) -> None:
        self._what = f"{what}: rows of the chief's data"
        self._inner = inner
        self._spec = spec
        self._steps = steps

    @property
    def steps(self) -> int | None:
        return self._steps

    def spec(self) -> Spec:
        return self._spec

    @property
    def together(self) -> bool:
        return True

    @property
    def is_read_by_chief(self) -> bool:
        return True

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._inner.begin(epoch, initial, first=first)

    def hold(self, step: int) -> None:
        self._inner.hold(step)

    def again(self, step: int) -> None:
        self._inner.again(step)

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        own = self._inner.take(step, lambda size: [range(size)], ALONE) if place.rank == 0 else None
        return hand_out(self._what, own.rows if own is not None else None, self._spec, split, place)

    def names(self, step: int, rows: range) -> str:
        return self._inner.names(step, rows)

    def use_seed(self, seed: int) -> None:
        self._inner.use_seed(seed)

    def extent(self) -> bytes:
        return b""

    def sample(self) -> bytes:
        return b""

    def end(self, steps: int) -> None:
        self._inner.end(steps)

    def close(self) -> None:
        self._inner.close()
