"""What every source of batches does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from shoal.data.sources.rank import ALONE, Rank
from shoal.data.sources.shares import Spec, Split, Taken

Wanted = Callable[[int], bool]


def every_step(step: int) -> bool:
    return True


class Bookmark(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream has been read."""

    used: int = 0  # batches of this pass over it
    drawn: int = 0  # batches that passes before took of what can't be begun again; see stream.Once
    passes: int = 0  # over a stream of shards, before this one
    states: dict[int, tuple[int, bytes]] = {}  # its shards': the batch that one continues at, and the state


class AbstractSource(ABC):
    """Batches of one epoch after another. `take` is called for step 0, 1, … of an epoch, in order.

    A step may be taken again, with another share of it: it did not count the first time.
    """

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Steps in an epoch; None when only the end of the stream will tell."""

    @abstractmethod
    def spec(self) -> Spec:
        """What its batches look like. A stream's chief reads its first batch to know, and keeps it."""

    @property
    def together(self) -> bool:
        """Whether all workers must call `take` for every step, even for steps that they have no rows of."""
        return False

    @property
    def is_read_by_chief(self) -> bool:
        """Whether the chief alone reads it, for all."""
        return False

    @abstractmethod
    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        """Go to step `first` of an epoch of a fit that began with epoch `initial`.

        `wanted` tells the steps that this worker will take.
        """

    def is_over(self, step: int) -> bool:
        """Whether it is known, without asking anybody, that there is no such step in this epoch."""
        return False

    def ends_after(self, step: int) -> bool:
        """Whether there is no step after this one, which was taken. A stream's chief reads ahead to know."""
        return self.is_over(step + 1) or (self.steps is not None and step + 1 >= self.steps)

    @abstractmethod
    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        """This worker's rows of a step, or None when the source has ended."""

    def hold(self, step: int) -> None:  # noqa: B027 (most sources give any step at any time)
        """Steps from this one on may all be taken again; those before it never."""

    def again(self, step: int) -> None:  # noqa: B027 (the same)
        """The steps from this one on, which was held, come once more, in order: they did not count."""

    def whole(self, step: int) -> Taken | None:
        """All rows of a step, whichever was asked for last. Not of a stream."""
        return self.take(step, lambda size: [range(size)], ALONE)

    @abstractmethod
    def names(self, step: int, rows: range) -> str:
        """Which samples these rows of a step's batch are, for people: an error says it."""

    def use_seed(self, seed: int) -> None:  # noqa: B027 (streams have their own order)
        """Shuffle by this seed from the next epoch on, if at all."""

    def bookmark(self, step: int) -> Bookmark:
        """Where a stream stands before this step, for whoever reads it next."""
        return Bookmark()

    def go_to(self, mark: Bookmark) -> None:  # noqa: B027 (only streams have one)
        """A stream has been read up to here by others."""

    @abstractmethod
    def extent(self) -> bytes:
        """What all workers must have alike, and can tell without reading anything."""

    @abstractmethod
    def sample(self) -> bytes:
        """A digest that differs when workers hold other data. A stream reads its first batch for it."""

    def end(self, steps: int) -> None:  # noqa: B027 (most sources have nothing to do)
        """The epoch is over, after so many steps."""

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Let go of threads and iterators."""


class AbstractStream(AbstractSource):
    """A source of which one worker looks at a first batch for all: nobody knows before what batches look like."""

    differs = ""  # what it means that the workers' first batches differ, and what to do

    @property
    def together(self) -> bool:
        return True

    @abstractmethod
    def peek(self) -> bytes:
        """For the chief: what its batches look like. Reads the first, once, which is not lost."""

    @abstractmethod
    def know(self, peeked: bytes) -> None:
        """What the chief saw."""
