"""Rows of one leaf of a batch: a dense array, or rows of different lengths (texts, ragged and sparse tensors).

Both are cut and taken by row number, and both travel as plain arrays of numbers: nothing is pickled.

    texts     "cat", "", "dog"        splits 0 3 3 6      elements: the bytes
    ragged    [1, 2], [], [3]         splits 0 2 2 3      elements: the values, which may be jagged themselves
    sparse    row 0 has two values    splits 0 2 …        elements: the places in the row, and the values there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]


class LeafSpec(msgspec.Struct, frozen=True):
    """What the rows of a leaf are like: their type, and their shape without the batch's axis."""

    dtype: str
    shape: tuple[int | None, ...]  # None: differs from row to row
    kind: str = "dense"  # what the rows stand for: whoever made them knows the word
    parts: tuple[LeafSpec, ...] = ()  # what the elements of jagged rows are like
    each: int = 0  # elements of a jagged row, where all have the same number


class Jagged:
    """Rows of different lengths: row i holds the elements [splits[i], splits[i + 1]) of every part."""

    def __init__(self, spec: LeafSpec, splits: Array, parts: Sequence[Column]) -> None:
        self.spec = spec
        self.splits = splits
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, rows: slice | Array) -> Jagged:
        """Some of the rows: neighbours, or those with these numbers."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            splits = self.splits[start : max(start, stop) + 1]
            return Jagged(self.spec, splits - splits[0], [part[splits[0] : splits[-1]] for part in self.parts])
        lengths = np.diff(self.splits)[rows]
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(self.splits.dtype)
        within = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
        elements = np.repeat(self.splits[:-1][rows], lengths) + within
        return Jagged(self.spec, splits, [part[elements] for part in self.parts])


Column = Array | Jagged
Rows = list[Column]


def dense(dtype: np.dtype[Any] | str, shape: Sequence[int]) -> LeafSpec:
    return LeafSpec(str(dtype), tuple(shape))


def spec_of(column: Column) -> LeafSpec:
    return column.spec if isinstance(column, Jagged) else dense(column.dtype, column.shape[1:])


def empty(spec: LeafSpec) -> Column:
    """No rows at all, of the right kind."""
    return blank(spec, 0)


def blank(spec: LeafSpec, rows: int) -> Column:
    """Rows of zeros, which take no memory; jagged ones of as few elements as they may have."""
    if spec.parts:
        splits = np.arange(rows + 1, dtype=np.int64) * spec.each
        return Jagged(spec, splits, [blank(part, rows * spec.each) for part in spec.parts])
    return np.broadcast_to(np.zeros((), spec.dtype), (rows, *_fixed(spec.shape)))


def pack(columns: Sequence[Column]) -> list[Array]:
    """As arrays of numbers, which `unpack` understands."""
    return [array for column in columns for array in _arrays(column)]


def unpack(specs: Sequence[LeafSpec], arrays: Sequence[Array]) -> Rows:
    supply = iter(arrays)
    return [_column(spec, supply) for spec in specs]


def concatenate(columns: Sequence[Column]) -> Column:
    """One after another. All of one kind."""
    first = columns[0]
    if not isinstance(first, Jagged):
        return np.concatenate([column for column in columns if not isinstance(column, Jagged)])
    jagged = [column for column in columns if isinstance(column, Jagged)]
    lengths = np.concatenate([np.diff(column.splits) for column in jagged])
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(first.splits.dtype)
    parts = zip(*(column.parts for column in jagged), strict=True)
    return Jagged(first.spec, splits, [concatenate(part) for part in parts])


def _arrays(column: Column) -> Iterator[Array]:
    if isinstance(column, Jagged):
        yield column.splits
        for part in column.parts:
            yield from _arrays(part)
    else:
        yield column


def _column(spec: LeafSpec, supply: Iterator[Array]) -> Column:
    array = next(supply)
    return Jagged(spec, array, [_column(part, supply) for part in spec.parts]) if spec.parts else array


def _fixed(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(axis or 0 for axis in shape)
