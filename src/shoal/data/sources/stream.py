"""Batches that come one after another and can't be asked for by number.

Only the chief reads, one batch ahead while the step computes, and hands every worker its rows: whatever order the
stream has, no sample is seen twice. The price is that one process reads and all rows cross the wire.

All know how far the stream has been read, so that the next chief can go to the same place in its own copy of it.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from shoal.data.columns import Rows, pack
from shoal.data.sources.rank import Rank
from shoal.data.sources.shares import Spec, Split, Taken, digest_of, hand_out
from shoal.data.sources.source import AbstractStream, Bookmark, Wanted, every_step
from shoal.data.structure import Skeleton
from shoal.errors import CannotDistribute

_KEPT_LIMIT = 2**30  # bytes of batches that are kept for the case that an evaluation, or a round, is begun again

Convert = Callable[[Any], tuple[Rows, Skeleton]]


class AbstractReader(ABC):
    """What a stream's batches are read from: one pass over it after another."""

    @abstractmethod
    def first(self) -> Any | None:
        """The first batch, None if there is none. The next pass gives it too."""

    @abstractmethod
    def begin(self, drawn: int) -> Iterator[Any]:
        """A pass over it, where the passes before have `drawn` so many batches."""

    @abstractmethod
    def drawn_by(self, used: int) -> int:
        """How many batches a pass that used so many has drawn, which no other pass will give."""


class Restartable(AbstractReader):
    """What can be read again and again from its beginning, such as a data set."""

    def __init__(self, start: Callable[[], Iterator[Any]]) -> None:
        self._start = start
        self._begun: list[tuple[Any, Iterator[Any]]] = []  # the first batch and what comes after, not given out yet

    def first(self) -> Any | None:
        if not self._begun:
            iterator = self._start()
            for batch in iterator:
                self._begun.append((batch, iterator))
                break
        return self._begun[0][0] if self._begun else None

    def begin(self, drawn: int) -> Iterator[Any]:
        if not self._begun:
            return self._start()
        batch, rest = self._begun.pop()
        return itertools.chain([batch], rest)

    def drawn_by(self, used: int) -> int:
        return 0


class Once(AbstractReader):
    """A generator as Keras reads it: its first two batches are kept, and every pass begins with them again.

    So an epoch of three steps gives the batches 0, 1, 2, and after them 0, 1, 3, if it begins a pass of its own.
    """

    _AGAIN = 2

    def __init__(self, generator: Iterator[Any]) -> None:
        self._generator = generator
        self._firsts: list[Any] | None = None
        self._drawn = 0

    def first(self) -> Any | None:
        if self._firsts is None:
            self._firsts = list(itertools.islice(self._generator, self._AGAIN))
        return self._firsts[0] if self._firsts else None

    def begin(self, drawn: int) -> Iterator[Any]:
        self.first()
        while self._drawn < drawn:  # by another chief, in its own copy of the generator
            self._drawn += 1
            next(self._generator, None)
        yield from self._firsts or []
        for batch in self._generator:
            self._drawn += 1
            yield batch

    def drawn_by(self, used: int) -> int:
        return max(0, used - self._AGAIN)


class _Seen(msgspec.Struct, frozen=True):
    """What the chief knows of its stream when it has seen the first batch."""

    spec: Spec | None  # None: there was none
    count: int | None


class Stream(AbstractStream):
    """A stream among the workers of a run."""

    differs = (
        "Give every worker the whole data: only the chief's is read, and Shoal divides each batch among the workers. "
        "To read on all workers, see shoal.stream."
    )

    def __init__(
        self,
        what: str,
        reader: AbstractReader,
        convert: Convert,
        steps: int | None,
        count: int | None = None,
        goes_on: bool = False,
        keeps: bool = False,
    ) -> None:
        self._what = f"{what}: rows of a stream"
        self._reader = reader
        self._convert = convert
        self._asked = steps
        self._count = count  # batches of a pass, where that is known before it ends; the chief's counts
        self._goes_on = goes_on  # an epoch goes on where the last one stopped; otherwise it is a pass of its own
        self._keeps = keeps  # the batches of a pass, which may be begun again: a generator does not give them twice
        self._held: int | None = None  # the first batch of those that may be taken again
        self._kept: dict[int, Rows | None] = {}
        self._kept_bytes = 0
        self._spec: Spec | None = None
        self._peeked: tuple[bytes, bytes] | None = None
        self._start = Bookmark()  # of this epoch; between two epochs, of the next
        self._pass: int | None = None  # the one that this worker's own iterator is in, by what had been drawn before it
        self._iterator: Iterator[Any] | None = None
        self._read = 0  # batches that it has given
        self._batch: tuple[int, Rows | None] | None = None  # the last one, and its number
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shoal-stream")
        self._next: Future[Rows | None] | None = None

    @property
    def steps(self) -> int | None:
        return self._asked if self._asked is not None else self._count

    def peek(self) -> bytes:
        return self._look()[0]

    def know(self, peeked: bytes) -> None:
        seen = msgspec.json.decode(peeked, type=_Seen)
        self._spec, self._count = seen.spec, seen.count
        if self._spec is None:
            raise CannotDistribute("the data gives no batch at all; expected at least one")

    def spec(self) -> Spec:
        assert self._spec is not None, "the chief has not told yet what its batches look like"
        return self._spec

    def extent(self) -> bytes:
        return b""  # only the chief's counts

    def sample(self) -> bytes:
        return self._look()[1]

    @property
    def is_read_by_chief(self) -> bool:
        return True

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._start = Bookmark(self._start.used - first, self._start.drawn)
        if self._start.used + first > 0 or (self._keeps and self._pass == self._start.drawn):
            return  # a pass goes on; or it is begun again, and what has been read of it is kept
        self._let_go()
        self._next = self._batch = None
        self._read = self._kept_bytes = 0
        self._kept = {}

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        batch = self._next_batch(step) if place.rank == 0 else None
        return hand_out(self._what, batch, self.spec(), split, place)

    def hold(self, step: int) -> None:
        self._held = self._start.used + step
        last = self._batch if self._batch is not None and self._batch[0] >= self._held else None
        self._kept = {number: batch for number, batch in self._kept.items() if number >= self._held}
        self._kept_bytes = sum(map(_nbytes, self._kept.values()))
        if last is not None and last[0] not in self._kept:
            self._keep(*last)

    def ends_after(self, step: int) -> bool:
        if self.steps is not None:
            return step + 1 >= self.steps
        number = self._start.used + step + 1
        return (self._kept[number] if number in self._kept else self._ahead().result()) is None

    def names(self, step: int, rows: range) -> str:
        return f"rows {rows.start} to {rows.stop - 1} of batch {self._start.used + step} of the stream"

    def bookmark(self, step: int) -> Bookmark:
        return Bookmark(self._start.used + step, self._start.drawn)

    def go_to(self, mark: Bookmark) -> None:
        self._start = mark

    def end(self, steps: int) -> None:
        used = self._start.used + steps
        is_over = self.steps is None or steps < self.steps or (self._count is not None and used >= self._count)
        if self._goes_on and not is_over:
            self._start = Bookmark(used, self._start.drawn)
        else:
            self._start = Bookmark(0, self._start.drawn + self._reader.drawn_by(used))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _let_go(self) -> None:
        """Of the last pass. To end it may take its time: TensorFlow has taken seconds, a loader ends its processes."""
        ended, self._iterator = [self._iterator], None
        if ended != [None]:
            threading.Thread(target=ended.clear, name="shoal-stream-ends", daemon=True).start()

    def _next_batch(self, step: int) -> Rows | None:
        number = self._start.used + step
        batch = self._find(number)
        if batch is None:
            return None
        if not all(len(row) for row in batch):
            raise CannotDistribute(f"the data gave a batch without samples at step {step}")
        # Only what is sure to be asked for, and has not been read before: a generator does not take it back.
        if (self.steps is None or step + 1 < self.steps) and number + 1 == self._read:
            self._ahead()
        return batch

    def _look(self) -> tuple[bytes, bytes]:
        """What the first batch looks like, and a digest of it."""
        if self._peeked is None:
            first = self._reader.first()
            found = self._convert(first) if first is not None else None
            self._peeked = (
                msgspec.json.encode(_Seen(Spec.of(*found) if found else None, self._count)),
                digest_of(found[0], 0) if found else b"",
            )
        return self._peeked

    def _find(self, number: int) -> Rows | None:
        """The batch with this number in the pass. Those before it, which others used, are read and dropped."""
        if number in self._kept:
            return self._kept[number]
        while self._batch is None or self._batch[0] < number:
            batch = self._ahead().result()
            self._next = None
            self._batch = (self._read, batch)
            self._keep(*self._batch)
            self._read += 1
            if batch is None:
                break
        if self._batch[0] > number:
            raise CannotDistribute(
                f"batch {number} of a generator is needed again, because {self._why_again}, and it was too "
                "large to be kept. Use a keras.utils.PyDataset, which can be asked for batches by number."
            )
        return self._batch[1]

    @property
    def _why_again(self) -> str:
        return "the evaluation is begun anew" if self._held is None else "the round is begun anew"

    def _keep(self, number: int, batch: Rows | None) -> None:
        if not (self._keeps or self._held is not None) or self._kept_bytes > _KEPT_LIMIT:
            return
        self._kept_bytes += _nbytes(batch)
        self._kept[number] = batch
        if self._kept_bytes > _KEPT_LIMIT:
            self._kept.clear()

    def _ahead(self) -> Future[Rows | None]:
        """The batch after the last one, which is being read in the background."""
        if self._iterator is None:
            self._pass = self._start.drawn
            self._iterator = self._reader.begin(self._pass)
        if self._next is None:
            self._next = self._pool.submit(self._read_one, self._iterator)
        return self._next

    def _read_one(self, iterator: Iterator[Any]) -> Rows | None:
        for batch in iterator:
            return self._convert(batch)[0]
        return None


def _nbytes(batch: Rows | None) -> int:
    return sum(array.nbytes for array in pack(batch or []))
