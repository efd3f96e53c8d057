"""A stream in shards: every worker reads some of them, and the rows that it reads are those that it computes.

A step's batch is the shards' batches one after another: batch 7 of shard 0, batch 7 of shard 1, … A shard that has
ended gives nothing more; when all have, the pass is over. So what a batch holds does not depend on who reads it.

Who computes the rows of a shard reads it. Only where the pieces of a batch are not whole shards (their number is no
multiple of the pieces', or some have ended) do rows go from who reads them to who computes them. Before a step the
workers tell each other how many rows their shards give, and now and then where they stand: a worker that gets another's
shard opens it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from shoal.data.columns import Rows, concatenate, pack, unpack
from shoal.data.order import piece_bounds
from shoal.data.sources.rank import Rank
from shoal.data.sources.shard_reading import SavedState, ShardReading
from shoal.data.sources.shares import Spec, Split, Taken, digest_of, empty_rows
from shoal.data.sources.source import AbstractStream, Bookmark, Wanted, every_step
from shoal.data.structure import Skeleton
from shoal.errors import CannotDistribute, Diverged

_DEPTH = 2  # batches of each shard that are read while a step computes
_ROWS = -1  # begins the names of rows that are sent: a pipeline's names begin with others

OpenData = Callable[[int, int], Any]  # the number of a shard, and of the pass over it -> its data, to be iterated


class _ShardsSeen(msgspec.Struct, frozen=True):
    """What the chief knows when it has seen the first batch of the first shard."""

    spec: Spec | None  # None: there was none. Its samples are those of a batch of all shards
    passes: int


class _ShardWord(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says of its shards before a step, in their order."""

    sizes: list[int]  # rows of their batches; 0: ended
    later: list[int]  # of the batches after those, where they are asked for
    states: dict[int, SavedState]


class ShardedStream(AbstractStream):
    """A stream in shards among the workers of a run."""

    differs = (
        "The same shard must give the same batches on every worker, whatever its rank: Shoal calls `make` for the "
        "shards that a worker reads."
    )

    def __init__(
        self,
        what: str,
        open_data: OpenData,
        shards: int,
        convert: Callable[[Any], tuple[Rows, Skeleton]],
        steps: int | None,
        goes_on: bool = False,
        passes: int = 0,
        on_pass: Callable[[int], object] = lambda passes: None,
    ) -> None:
        """`passes`: how many were made over it before; `on_pass` hears of each that is over."""
        self._what = f"{what}: shards of a stream"
        self._trains = what in ("fit", "batches")  # then rows are divided among all; else a batch goes whole to one
        self._tells_later = what == "batches"
        self._open_data = open_data
        self._shards = shards
        self._convert = convert
        self._asked = steps
        self._goes_on = goes_on  # an epoch goes on where the last one stopped
        self._on_pass = on_pass
        self._spec: Spec | None = None
        self._peeked: tuple[bytes, bytes] | None = None
        self._start = Bookmark(passes=passes)  # of this epoch; between two epochs, of the next
        self._pass = passes  # that the readings are in
        self._states: dict[int, SavedState] = {}  # of all shards, in this pass
        self._readings: dict[int, ShardReading] = {}
        self._later: list[int] = []  # rows of the shards in the step after the last one
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shoal-shards")

    @property
    def steps(self) -> int | None:
        return self._asked

    def peek(self) -> bytes:
        return self._look()[0]

    def know(self, peeked: bytes) -> None:
        seen = msgspec.json.decode(peeked, type=_ShardsSeen)
        if seen.spec is None:
            raise CannotDistribute("shard 0 of the stream gives no batch at all; expected at least one")
        if not seen.spec.is_cuttable:
            raise CannotDistribute(
                "the arrays in a batch of shard 0 of the stream have different numbers of rows; expected one per sample"
            )
        self._spec = seen.spec
        if self._start == Bookmark(passes=self._start.passes):
            self._start = Bookmark(passes=seen.passes)

    def spec(self) -> Spec:
        assert self._spec is not None, "the chief has not told yet what its batches look like"
        return self._spec

    def extent(self) -> bytes:
        return f"{self._shards} shards".encode()

    def sample(self) -> bytes:
        return self._look()[1]

    def begin(self, epoch: int, initial: int = 0, wanted: Wanted = every_step, first: int = 0) -> None:
        self._start = msgspec.structs.replace(self._start, used=self._start.used - first)
        if self._pass != self._start.passes:
            self._keep(())
            self._pass, self._states = self._start.passes, {}
        self._later = []

    def take(self, step: int, split: Split, place: Rank) -> Taken | None:
        number = self._start.used + step
        owned = self._owned(split, place.size)
        mine = owned[place.rank]
        self._keep(mine)
        batches = {shard: self._reading(shard, number).batch(number) for shard in mine}
        sizes = self._agree(number, batches, owned, place)
        if not any(sizes):
            return None
        self._read_ahead(step, number, mine)
        starts = [sum(sizes[:shard]) for shard in range(self._shards + 1)]
        ranges = split(starts[-1])
        self._send(batches, ranges, starts, place)
        reads = {shard: rank for rank, shards in enumerate(owned) for shard in shards}
        parts: list[Rows] = []
        for shard in range(self._shards):
            held = _within(ranges[place.rank], starts, shard)
            if not held:
                continue
            if (batch := batches.get(shard)) is not None:
                parts.append([row[held.start : held.stop] for row in batch])
            else:
                arrays = place.receive(reads[shard], (_ROWS, shard, place.rank), self._what)
                parts.append([*unpack(self.spec().leaves, [array.copy() for array in arrays])])
        rows = [concatenate(columns) for columns in zip(*parts, strict=True)] if parts else empty_rows(self.spec())
        return Taken(starts[-1], ranges[place.rank].start, rows)

    def ends_after(self, step: int) -> bool:
        return super().ends_after(step) or (bool(self._later) and not any(self._later))

    def names(self, step: int, rows: range) -> str:
        number = self._start.used + step
        return f"rows {rows.start} to {rows.stop - 1} of batch {number} of the stream's {self._shards} shards"

    def bookmark(self, step: int) -> Bookmark:
        number = self._start.used + step
        states = {shard: saved for shard, saved in self._states.items() if saved[0] <= number}
        return Bookmark(number, 0, self._start.passes, states)

    def go_to(self, mark: Bookmark) -> None:
        if mark.passes != self._pass:
            self._keep(())
            self._pass = mark.passes
        self._start, self._states = mark, dict(mark.states)

    def end(self, steps: int) -> None:
        is_over = self.steps is None or steps < self.steps
        if self._goes_on and not is_over:
            self._start = Bookmark(self._start.used + steps, 0, self._start.passes)
            return
        passes = self._start.passes + (1 if is_over else 0)
        self._start = Bookmark(passes=passes)
        self._on_pass(passes)

    def close(self) -> None:
        self._keep(())
        self._pool.shutdown(wait=False, cancel_futures=False)

    def _look(self) -> tuple[bytes, bytes]:
        """What the first batch of the first shard looks like, and a digest of it."""
        if self._peeked is None:
            first = self._reading(0, 0).batch(0)
            spec = self._spec
            if first is not None and spec is not None:
                spec = msgspec.structs.replace(spec, samples=len(first[0]) * self._shards)
            self._peeked = (
                msgspec.json.encode(_ShardsSeen(spec, self._start.passes)),
                digest_of(first, 0) if first is not None else b"",
            )
        return self._peeked

    # Who reads what ---------------------------------------------------------------------------------

    def _owned(self, split: Split, workers: int) -> list[list[int]]:
        """The shards that each rank reads: those whose rows it computes, when each gives as many as the first did."""
        if not self._trains:
            bounds = piece_bounds(self._shards, workers)
            return [[*range(bounds[rank], bounds[rank + 1])] for rank in range(workers)]
        each = self.spec().samples // self._shards
        ranges = split(each * self._shards)
        owned: list[list[int]] = [[] for _ in ranges]
        for shard in range(self._shards):
            first = shard * each
            owned[next(rank for rank, rows in enumerate(ranges) if first in rows)].append(shard)
        return owned

    def _keep(self, shards: Sequence[int]) -> None:
        """Lets go of what others read now."""
        for shard in [each for each in self._readings if each not in shards]:
            self._readings.pop(shard).drop()

    def _reading(self, shard: int, number: int) -> ShardReading:
        """The shard, opened at this batch or before it."""
        found = self._readings.get(shard)
        if found is None or not found.can_give(number):
            if found is not None:
                found.drop()
            saved = self._states.get(shard)
            if saved is not None and saved[0] > number:
                saved = None
            opens = partial(self._open_data, shard, self._pass)
            found = ShardReading(shard, opens, partial(self._rows, shard), self._pool, saved)
            self._readings[shard] = found
        return found

    def _read_ahead(self, step: int, number: int, mine: Sequence[int]) -> None:
        for later in range(1, _DEPTH + 1):
            if self.steps is None or self._goes_on or step + later < self.steps:
                for shard in mine:
                    self._readings[shard].ahead(number + later)
        for shard in mine:
            self._readings[shard].forget(number)  # the step may still be taken again

    def _rows(self, shard: int, batch: Any) -> Rows:
        rows, skeleton = self._convert(batch)
        found = Spec.of(rows, skeleton)
        if self._spec is None:  # the first batch of all
            self._spec = found
        if not found.samples:
            raise CannotDistribute(f"shard {shard} of the stream gave a batch without samples")
        expected = self._spec
        if (found.skeleton, found.leaves, found.is_cuttable) != (expected.skeleton, expected.leaves, True):
            raise CannotDistribute(
                f"shard {shard} of the stream gave a batch of {_described(found)}; expected {_described(expected)}, as "
                "in the first batch of shard 0. A step's batch is made of the batches of all shards: give them rows of "
                "one type and shape, padded to the same length if need be."
            )
        return rows

    # What the workers tell each other ---------------------------------------------------------------

    def _agree(
        self, number: int, batches: dict[int, Rows | None], owned: Sequence[Sequence[int]], place: Rank
    ) -> list[int]:
        """How many rows each shard gives in this step."""
        mine = owned[place.rank]
        later = [_size(self._readings[shard].batch(number + 1)) for shard in mine] if self._tells_later else []
        states = {s: (number, state) for s in mine if (state := self._readings[s].state(number)) is not None}
        word = _ShardWord([_size(batches[shard]) for shard in mine], later, states)
        told = place.gather(self._what, msgspec.msgpack.encode(word))
        words = [msgspec.msgpack.decode(each, type=_ShardWord) for each in told]
        sizes, after = [0] * self._shards, [0] * self._shards
        for shards, each in zip(owned, words, strict=True):
            if len(each.sizes) != len(shards):
                raise Diverged(f"{self._what}: a worker has read {len(each.sizes)} shards; expected {len(shards)}")
            for i, shard in enumerate(shards):
                sizes[shard] = each.sizes[i]
                after[shard] = each.later[i] if each.later else 0
            self._states |= each.states
        self._later = after if self._tells_later else []
        return sizes

    def _send(
        self, batches: dict[int, Rows | None], ranges: Sequence[range], starts: Sequence[int], place: Rank
    ) -> None:
        """Rows that this worker has read and others compute."""
        for shard, batch in batches.items():
            for rank, rows in enumerate(ranges):
                held = _within(rows, starts, shard)
                if rank != place.rank and held and batch is not None:
                    part = pack([row[held.start : held.stop] for row in batch])
                    place.send([rank], (_ROWS, shard, rank), part)


def _within(rows: range, starts: Sequence[int], shard: int) -> range:
    """Which rows of a shard's batch are among these rows of a step's batch."""
    low, high = max(rows.start, starts[shard]), min(rows.stop, starts[shard + 1])
    return range(low - starts[shard], max(low, high) - starts[shard])


def _size(batch: Rows | None) -> int:
    return len(batch[0]) if batch is not None else 0


def _described(spec: Spec) -> str:
    if not spec.is_cuttable:
        return "arrays with different numbers of rows"
    return ", ".join(f"{leaf.dtype} rows of shape {tuple(leaf.shape)}" for leaf in spec.leaves) or "nothing"
