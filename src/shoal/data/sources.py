"""Where batches come from. Every source gives a worker the rows of its own pieces, and nothing else.

Arrays         indexed: a worker touches its own rows only.
Items          indexed sample by sample (a map-style loader): a worker loads its own samples only.
Batches        indexed batch by batch (a PyDataset): a worker loads each batch and keeps its own rows.
Stream         read once, by the chief, who hands every worker its rows: whatever order the stream has,
               no sample is seen twice. The price is that one process reads and all rows cross the wire.

A step's rows are always one contiguous range of the global batch, because a worker holds contiguous pieces.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from shoal.data.order import Indices, permutation
from shoal.data.structure import Skeleton
from shoal.errors import CannotDistribute

_NAMED = 8  # samples that an error names
_SAMPLED = 16  # rows that workers compare to notice that they hold other data

T = TypeVar("T")
Rows = list[np.ndarray[Any, Any]]
Split = Callable[[int], Sequence[range]]  # the batch's size -> the rows of each rank
Wanted = Callable[[int], bool]


class Place(Protocol):
    """A worker's place among those with whom it takes a step."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def scatter(self, what: str, parts: Sequence[Rows] | None, header: bytes = b"") -> tuple[bytes, Rows]:
        """Rank 0 gives a header for all and rows for each; everyone gets the header and its own rows."""


class _Alone:
    """The place of one who shares its rows with nobody."""

    rank, size = 0, 1

    def scatter(self, what: str, parts: Sequence[Rows] | None, header: bytes = b"") -> tuple[bytes, Rows]:
        raise TypeError("a stream's rows are not taken alone")


_ALONE = _Alone()


def every_step(step: int) -> bool:
    return True


class Spec(msgspec.Struct, frozen=True):
    """What a batch looks like: its skeleton, and each leaf's dtype and shape without the batch's axis."""

    skeleton: Skeleton
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    samples: int  # in what it was made from: for sources of batches, the first of them

    @classmethod
    def of(cls, rows: Rows, skeleton: Skeleton) -> Spec:
        return cls(skeleton, tuple(str(r.dtype) for r in rows), tuple(r.shape[1:] for r in rows), len(rows[0]))


class Taken(msgspec.Struct, frozen=True):
    """One step's rows for one worker: rows [first, first + n) of a global batch of `size` samples."""

    size: int
    first: int
    rows: Rows


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

    @abstractmethod
    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        """Go to step `first` of an epoch of a fit that began with epoch `initial`.

        `wanted` tells the steps that this worker will take.
        """

    def is_over(self, step: int) -> bool:
        """Whether it is known, without asking anybody, that there is no such step in this epoch."""
        return False

    @abstractmethod
    def take(self, step: int, split: Split, place: Place) -> Taken | None:
        """This worker's rows of a step, or None when the source has ended."""

    def whole(self, step: int) -> Taken | None:
        """All rows of a step, whichever was asked for last. Not of a stream."""
        return self.take(step, lambda size: [range(size)], _ALONE)

    @abstractmethod
    def names(self, step: int, rows: range) -> str:
        """Which samples these rows of a step's batch are, for people: an error says it."""

    def use_seed(self, seed: int) -> None:  # noqa: B027 (streams have their own order)
        """Shuffle by this seed from the next epoch on, if at all."""

    def place_in_stream(self, step: int) -> int:
        """How many batches of a stream have been used up before this step, for whoever reads it next."""
        return 0

    def go_to(self, place: int) -> None:  # noqa: B027 (only streams have one)
        """A stream has been read up to this place by others."""

    def sample(self) -> bytes:
        """A digest that differs when workers hold other data. Empty where only one of them reads."""
        return b""

    def end(self) -> None:  # noqa: B027 (most sources have nothing to do)
        """The epoch is over."""

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Let go of threads and iterators."""


class Arrays(AbstractSource):
    """Arrays in memory, by row."""

    def __init__(
        self,
        rows: Rows,
        skeleton: Skeleton,
        batch_size: int,
        seed: int | None,
        shuffle_batches: bool = False,
        steps: int | None = None,
    ) -> None:
        self._rows = rows
        self._spec = Spec.of(rows, skeleton)
        self._count = len(rows[0])
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle_batches = shuffle_batches
        self._passes = _Passes(-(-self._count // batch_size), steps)
        self._order: Indices | None = None

    @property
    def steps(self) -> int:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def sample(self) -> bytes:
        digest = hashlib.blake2b(str(self._count).encode(), digest_size=16)
        for place in np.linspace(0, self._count - 1, _SAMPLED).astype(int):
            for row in self._rows:
                digest.update(np.ascontiguousarray(row[place]).tobytes())
        return digest.digest()

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        self._shuffle()

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def take(self, step: int, split: Split, place: Place) -> Taken | None:
        batch = self._passes.batch(step)
        if batch is None:
            return None
        low = batch * self._batch_size
        high = min(low + self._batch_size, self._count)
        mine = split(high - low)[place.rank]
        if self._order is None:
            rows = [row[low + mine.start : low + mine.stop] for row in self._rows]
        else:
            indices = self._order[low + mine.start : low + mine.stop]
            rows = [np.take(row, indices, axis=0) for row in self._rows]
        return Taken(high - low, mine.start, rows)

    def names(self, step: int, rows: range) -> str:
        low = (self._passes.batch(step) or 0) * self._batch_size
        places = range(low + rows.start, low + rows.stop)
        return _samples(places if self._order is None else self._order[places.start : places.stop])

    def _shuffle(self) -> None:
        if self._seed is None:
            return
        if not self._shuffle_batches:
            self._order = permutation(self._seed, self._passes.number, self._count)
            return
        whole = self._count // self._batch_size  # as in Keras, a last, smaller batch stays last
        batches = permutation(self._seed, self._passes.number, whole)
        within = np.arange(self._batch_size)
        head = (batches[:, None] * self._batch_size + within).reshape(-1)
        self._order = np.concatenate([head, np.arange(whole * self._batch_size, self._count)])


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
    ) -> None:
        self._load = load
        self._whole_batches = whole_batches  # load all of a batch and keep the own rows
        self._spec = spec
        self._count = count
        self._batch_size = batch_size
        self._seed = seed
        whole, rest = divmod(count, batch_size)
        self._passes = _Passes(whole + (1 if rest and not drop_last else 0), steps)
        self._order: Indices = np.arange(count)
        self._ahead: _Ahead[tuple[range, Rows]] = _Ahead(threads, "shoal-items")

    @property
    def steps(self) -> int:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        if self._seed is not None:
            self._order = permutation(self._seed, self._passes.number, self._count)
        self._ahead.begin(filter(wanted, range(first, self._passes.steps)))

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def take(self, step: int, split: Split, place: Place) -> Taken | None:
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
        return _samples(self._order[own.start : own.stop])

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
        with _noting(lambda: f"loading {_samples(indices)}"):
            rows = self._load(indices)
        return [row[held.start : held.stop] for row in rows] if self._whole_batches else rows


class Batches(AbstractSource):
    """A data set of whole batches, by number. The next ones are loaded while a step computes."""

    def __init__(
        self,
        load: Callable[[int], Rows],
        spec: Spec,
        count: int,
        seed: int | None,
        steps: int | None = None,
        on_epoch_begin: Callable[[], object] = lambda: None,
        on_epoch_end: Callable[[], object] = lambda: None,
        threads: int = 1,
    ) -> None:
        self._load = load
        self._spec = spec
        self._count = count
        self._seed = seed
        self._on_epoch_begin = on_epoch_begin
        self._on_epoch_end = on_epoch_end
        self._passes = _Passes(count, steps)
        self._order: Indices = np.arange(count)
        self._ahead: _Ahead[Rows] = _Ahead(threads, "shoal-batches")

    @property
    def steps(self) -> int:
        return self._passes.steps

    def spec(self) -> Spec:
        return self._spec

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._passes.begin(epoch, initial)
        if self._seed is not None:
            self._order = permutation(self._seed, self._passes.number, self._count)
        self._on_epoch_begin()
        there = (step for step in range(first, self._passes.steps) if self._passes.batch(step) is not None)
        self._ahead.begin(filter(wanted, there))

    def use_seed(self, seed: int) -> None:
        self._seed = seed if self._seed is not None else None

    def is_over(self, step: int) -> bool:
        return self._passes.batch(step) is None

    def take(self, step: int, split: Split, place: Place) -> Taken | None:
        if self._passes.batch(step) is None:
            return None

        def load(later: int) -> Rows:
            with _noting(lambda: f"loading batch {self._number(later)}"):
                return self._load(self._number(later))

        rows = self._ahead.take(step, load)
        size = len(rows[0])
        mine = split(size)[place.rank]
        return Taken(size, mine.start, [row[mine.start : mine.stop] for row in rows])

    def whole(self, step: int) -> Taken | None:
        if self._passes.batch(step) is None:
            return None
        with _noting(lambda: f"loading batch {self._number(step)}"):
            rows = self._load(self._number(step))
        return Taken(len(rows[0]), 0, rows)

    def names(self, step: int, rows: range) -> str:
        return f"rows {rows.start} to {rows.stop - 1} of batch {self._number(step)}"

    def _number(self, step: int) -> int:
        return int(self._order[self._passes.batch(step) or 0])

    def end(self) -> None:
        self._on_epoch_end()

    def close(self) -> None:
        self._ahead.close()


class Stream(AbstractSource):
    """Batches that come one after another and can't be asked for by number.

    Only the chief reads, one batch ahead while the step computes, and hands every worker its rows. All count what was
    read since the stream was last started, so that the next chief can go to the same place in its own copy of it.
    """

    def __init__(
        self,
        what: str,
        restart: Callable[[], Iterator[Rows]],
        first: Callable[[], tuple[Rows, Skeleton] | None],
        steps: int | None,
        goes_on: bool,
        keeps: bool = False,
    ) -> None:
        self._what = f"{what}: rows of a stream"
        self._restart = restart
        self._first = first
        self._steps = steps
        self._goes_on = goes_on  # with `steps_per_epoch`, an epoch goes on where the last one stopped
        self._keeps = keeps  # all batches of an epoch: it can't be read again if the epoch is begun again
        self._kept: dict[int, Rows | None] = {}
        self._peeked: bytes | None = None
        self._spec: Spec | None = None
        self._iterator: Iterator[Rows] | None = None
        self._read = 0  # batches that this worker's own iterator has given
        self._used = 0  # batches that all have used since the stream was last started
        self._epoch_used = 0  # the same, when this epoch began
        self._batch: tuple[int, Rows | None] | None = None  # the last one that was read, and its number
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shoal-stream")
        self._next: Future[Rows | None] | None = None

    @property
    def steps(self) -> int | None:
        return self._steps

    def peek(self) -> bytes:
        """For the chief: what its batches look like. Reads the first, once, and keeps it."""
        if self._peeked is None:
            first = self._first()
            self._peeked = msgspec.json.encode(Spec.of(*first) if first else None)
        return self._peeked

    def know(self, peeked: bytes) -> None:
        """What the chief saw."""
        self._spec = msgspec.json.decode(peeked, type=Spec | None)
        if self._spec is None:
            raise CannotDistribute("the data gives no batch at all; expected at least one")

    def spec(self) -> Spec:
        assert self._spec is not None, "the chief has not told yet what its batches look like"
        return self._spec

    @property
    def together(self) -> bool:
        return True

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        if not self._goes_on:
            self._start_anew()
            self._used = first
        self._epoch_used = self._used - first
        self._kept = {number: batch for number, batch in self._kept.items() if number >= self._epoch_used}

    def take(self, step: int, split: Split, place: Place) -> Taken | None:
        number = self._epoch_used + step
        if place.rank != 0:
            header, rows = place.scatter(self._what, None)
            return self._taken(step, int.from_bytes(header[1:], "little"), header[:1], split, place, rows)
        batch = self._find(number)
        if batch is None and self._goes_on and step == 0:
            self._start_anew()  # used up: the next epoch starts it again
            batch = self._find(0)
        # Said in every step: one in which others would have heard that it was started anew may not have counted.
        anew = b"\1" if self._epoch_used == 0 else b"\0"
        if batch is None:
            place.scatter(self._what, [[] for _ in range(place.size)], b"\0" + (0).to_bytes(8, "little"))
            return None
        size = len(batch[0])
        if size == 0:
            raise CannotDistribute(f"the data gave a batch without samples at step {step}")
        if self._steps is None or step + 1 < self._steps:  # read ahead only what is sure to be asked for
            self._ahead()
        parts = [[row[part.start : part.stop] for row in batch] for part in split(size)]
        place.scatter(self._what, parts, anew + size.to_bytes(8, "little"))
        return self._taken(step, size, anew, split, place, parts[0])

    def names(self, step: int, rows: range) -> str:
        return f"rows {rows.start} to {rows.stop - 1} of batch {self._epoch_used + step} of the stream"

    def place_in_stream(self, step: int) -> int:
        return self._epoch_used + step

    def go_to(self, place: int) -> None:
        self._used = place

    def end(self) -> None:
        self._epoch_used = self._used  # the place where the next one begins

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _taken(self, step: int, size: int, anew: bytes, split: Split, place: Place, rows: Rows) -> Taken | None:
        if not size:
            return None
        if anew == b"\1":
            self._epoch_used = 0
        self._used = self._epoch_used + step + 1
        return Taken(size, split(size)[place.rank].start, rows or empty_rows(self.spec()))

    def _start_anew(self) -> None:
        self._iterator = None
        self._next = None
        self._batch = None
        self._read = self._used = self._epoch_used = 0

    def _find(self, number: int) -> Rows | None:
        """The batch with this number since the start. Those before it, which others used, are read and dropped."""
        if number in self._kept:
            return self._kept[number]
        while self._batch is None or self._batch[0] < number:
            batch = self._ahead().result()
            self._next = None
            self._batch = (self._read, batch)
            if self._keeps:
                self._kept[self._read] = batch
            self._read += 1
            if batch is None:
                break
        assert self._batch[0] <= number, f"batch {number} was asked for, {self._batch[0]} has been read"
        return self._batch[1]

    def _ahead(self) -> Future[Rows | None]:
        """The batch after the last one, which is being read in the background."""
        if self._iterator is None:
            self._iterator = self._restart()
        if self._next is None:
            self._next = self._pool.submit(next, self._iterator, None)
        return self._next


class _Ahead(Generic[T]):
    """Loads the next steps in the background while one computes."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._depth = threads + 1
        self._steps: Iterator[int] = iter(())
        self._loading: deque[tuple[int, Future[T]]] = deque()
        self._last: tuple[int, T] | None = None

    def begin(self, steps: Iterable[int]) -> None:
        """These steps will be asked for, in this order; each maybe more than once."""
        self._steps = iter(steps)
        self._loading.clear()
        self._last = None

    def take(self, step: int, load: Callable[[int], T]) -> T:
        if self._last is None or self._last[0] != step:
            while len(self._loading) < self._depth and (later := next(self._steps, None)) is not None:
                self._loading.append((later, self._pool.submit(load, later)))
            expected, future = self._loading.popleft()
            assert expected == step, f"step {step} was asked for, {expected} comes next"
            self._last = (step, future.result())
        return self._last[1]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Passes:
    """Which batch a step takes when an epoch is shorter than the data. A pure function of (epoch, step).

    As in Keras: with `steps_per_epoch` an epoch goes on where the last one stopped, ends early when the
    data is used up, and the next one starts the data anew (in a new order).
    """

    def __init__(self, batches: int, steps: int | None) -> None:
        self.steps = min(steps or batches, batches)
        self.number = 0  # of the pass over the data; with whole epochs, the epoch
        self._batches = batches
        self._first = 0

    def begin(self, epoch: int, initial: int) -> None:
        epochs_in_a_pass = -(-self._batches // self.steps)
        passes, place = divmod(epoch - initial, epochs_in_a_pass)
        self.number = initial + passes
        self._first = place * self.steps

    def batch(self, step: int) -> int | None:
        """The batch's number, or None when the data is used up."""
        batch = self._first + step
        return batch if batch < self._batches else None


@contextmanager
def _noting(what: Callable[[], str]) -> Iterator[None]:
    """An error that comes from the user's data says which data it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"shoal: while {what()}")
        raise


def _samples(indices: Sequence[int] | Indices) -> str:
    """The first few by number; as many as fit into a line."""
    first = ", ".join(str(index) for index in indices[:_NAMED])
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return f"sample{'s' if len(indices) != 1 else ''} {first}{more}"


def empty_rows(spec: Spec) -> Rows:
    """No rows at all, in the right shapes: for a worker whose share of a small batch is nothing."""
    return [np.empty((0, *shape), dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]
