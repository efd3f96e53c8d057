"""What a batch looks like, and which of its rows are whose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from shoal.data.columns import LeafSpec, Rows, empty, pack, spec_of, unpack
from shoal.data.sources.rank import Rank
from shoal.data.structure import Skeleton

Split = Callable[[int], Sequence[range]]  # the batch's size -> the rows of each rank


class Spec(msgspec.Struct, frozen=True):
    """What a batch looks like: its skeleton, and its leaves without the batch's axis."""

    skeleton: Skeleton
    leaves: tuple[LeafSpec, ...]
    samples: int  # in what it was made from: for sources of batches, the first of them
    is_cuttable: bool = True  # whether all leaves have one row per sample

    @classmethod
    def of(cls, rows: Rows, skeleton: Skeleton) -> Spec:
        counts = [len(row) for row in rows]
        return cls(skeleton, tuple(map(spec_of, rows)), size_of(counts), len(set(counts)) == 1)


class Taken(msgspec.Struct, frozen=True):
    """One step's rows for one worker: rows [first, first + n) of a global batch of `size` samples."""

    size: int
    first: int
    rows: Rows
    is_cuttable: bool = True

    def part(self, low: int, high: int) -> Rows:
        """Samples [low, high) of the global batch."""
        return samples_of(self.rows, range(low - self.first, high - self.first), self.is_cuttable)


def size_of(counts: Sequence[int]) -> int:
    """How many samples a batch has whose leaves have so many rows.

    Leaves of different numbers of rows (the atoms and the bonds of some molecules) belong together in a way that only
    the model knows: such a batch can't be cut, and counts as one sample.
    """
    return counts[0] if len(set(counts)) == 1 else 1


def samples_of(rows: Rows, mine: range, is_cuttable: bool) -> Rows:
    """Some of the samples that these rows are."""
    if is_cuttable:
        return [row[mine.start : mine.stop] for row in rows]
    return rows if mine else [row[:0] for row in rows]


def share(rows: Rows, split: Split, rank: int) -> Taken:
    """What one rank gets of a whole batch."""
    counts = [len(row) for row in rows]
    size, is_cuttable = size_of(counts), len(set(counts)) == 1
    mine = split(size)[rank]
    return Taken(size, mine.start, samples_of(rows, mine, is_cuttable), is_cuttable)


def hand_out(what: str, batch: Rows | None, spec: Spec, split: Split, place: Rank) -> Taken | None:
    """Everyone's rows of a batch that rank 0 gives; None where it has none to give."""
    if place.rank != 0:
        header, arrays = place.scatter(what, None)
        size, is_cuttable = msgspec.msgpack.decode(header, type=tuple[int, bool])
        if size == 0:
            return None
        return Taken(size, split(size)[place.rank].start, unpack(spec.leaves, arrays), is_cuttable)
    shares = [share(batch, split, rank) for rank in range(place.size)] if batch else []
    header = msgspec.msgpack.encode((shares[0].size, shares[0].is_cuttable) if shares else (0, True))
    parts = [pack(given.rows) for given in shares] or [[] for _ in range(place.size)]
    place.scatter(what, parts, header)
    return shares[0] if shares else None


def empty_rows(spec: Spec) -> Rows:
    """No rows at all, in the right shapes: for a worker whose share of a small batch is nothing."""
    return [empty(leaf) for leaf in spec.leaves]


def digest_of(rows: Rows, count: int) -> bytes:
    """Of these rows, among so many."""
    digest = hashlib.blake2b(str(count).encode(), digest_size=16)
    for array in pack(rows):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
