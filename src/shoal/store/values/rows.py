"""The rows of a large table that lives on servers: who holds which, what a row is before anybody has changed it, and
where a server keeps those that were.

A table's rows are dealt to its parts one by one: row `id` is number `id // parts` of part `id % parts`, so that rows
that are used together, and often, are spread.

A row that was never updated takes no memory. It is a function of the table's seed and of its id, the same on every
server and on one machine.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.errors import CannotDistribute
from shoal.store.values.tensors import Array

LARGEST = 2**31 - 1  # rows of a table: ids travel through programs that count in 32 bits
_FIRST_ROOM = 1024  # rows
_GOLDEN = 0x9E3779B97F4A7C15


class Fill(enum.StrEnum):
    """How the numbers of a new row are distributed."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    NORMAL = "normal"


class NewRows(msgspec.Struct, frozen=True):
    """What rows are before their first update."""

    fill: Fill = Fill.CONSTANT
    low: float = 0.0  # of a uniform distribution; the value of a constant; the mean of a normal one
    high: float = 0.0  # of a uniform distribution; the standard deviation of a normal one
    seed: int = 0

    def make(self, ids: Array, width: int) -> Array:
        """The rows with these ids, as float32."""
        if self.fill is Fill.CONSTANT:
            return np.full((ids.size, width), self.low, np.float32)
        counters = ids.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
        first = _uniform(counters, self.seed, 0)
        if self.fill is Fill.UNIFORM:
            return (self.low + (self.high - self.low) * first).astype(np.float32)
        angle = 2.0 * math.pi * _uniform(counters, self.seed, 1)
        return (self.low + self.high * np.sqrt(-2.0 * np.log1p(-first)) * np.cos(angle)).astype(np.float32)


class Table(msgspec.Struct, frozen=True):
    """A table whose rows are on servers."""

    name: str
    rows: int
    width: int
    new: NewRows = NewRows()
    parts: int = 1

    def rows_of(self, part: int) -> int:
        return len(range(part, self.rows, self.parts))

    @property
    def row_bytes(self) -> int:
        return 4 * self.width


def deal(ids: Array, parts: int) -> list[Array]:
    """The places in `ids` of what belongs to each part."""
    if parts == 1:
        return [np.arange(ids.size)]
    owners = ids % parts
    return [np.flatnonzero(owners == part) for part in range(parts)]


class KeptRows:
    """The rows of one part of a table that were ever updated, each with what its optimizer keeps for it."""

    def __init__(self, table: Table, part: int, initial: Sequence[float]) -> None:
        """`initial`: what each array of the optimizer has in a row that was never updated."""
        self._table = table
        self._part = part
        self._initial = tuple(initial)
        try:
            # Memory that is never touched is never taken: 4 bytes per row at most, and only around rows that are used.
            self._places = np.zeros(table.rows_of(part), np.int32)  # of a row, counted from 1; 0: never updated
        except MemoryError as error:
            raise CannotDistribute(
                f"the index of {table.name!r} ({table.rows:,} rows) has no room in memory"
            ) from error
        self._count = 0
        self._ids = np.empty(1, np.int64)  # there is room for more than there are
        self._columns = [np.empty((1, table.width), np.float32) for _ in range(1 + len(self._initial))]

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Array:
        """In the order of their first updates."""
        return self._ids[: self._count]

    @property
    def columns(self) -> list[Array]:
        """The rows, then each array of the optimizer, in the order of `ids`."""
        return [column[: self._count] for column in self._columns]

    def read(self, ids: Array) -> Array:
        """The rows with these ids. What was never updated is made, and not kept."""
        places = self._places[ids // self._table.parts] - 1
        rows: Array = self._columns[0][places]  # of a new one, anything
        fresh = places < 0
        if fresh.any():
            rows[fresh] = self._table.new.make(ids[fresh], self._table.width)
        return rows

    def places(self, ids: Array) -> Array:
        """Where the rows with these ids, each once, are kept. Those that were never updated are made."""
        local = ids // self._table.parts
        places: Array = self._places[local] - 1
        fresh = places < 0
        if fresh.any():
            places[fresh] = self._add(ids[fresh])
            self._places[local[fresh]] = places[fresh] + 1
        return places

    def gather(self, places: Array) -> list[Array]:
        return [column[places] for column in self._columns]

    def scatter(self, places: Array, values: Sequence[Array]) -> None:
        for column, value in zip(self._columns, values, strict=True):
            column[places] = value

    def replace(self, ids: Array, columns: Sequence[Array]) -> None:
        """Forgets everything and keeps these."""
        self._places[self.ids // self._table.parts] = 0
        room, self._count = max(1, ids.size), ids.size
        self._ids = _grown(ids, room)
        self._columns = [_grown(column.reshape(-1, self._table.width), room) for column in columns]
        self._places[ids // self._table.parts] = np.arange(1, ids.size + 1)

    def _add(self, ids: Array) -> Array:
        first, self._count = self._count, self._count + ids.size
        if self._count > self._ids.size:
            room = max(_FIRST_ROOM, self._count, self._ids.size * 3 // 2)
            self._ids = _grown(self._ids, room)
            self._columns = [_grown(column, room) for column in self._columns]
        self._ids[first : self._count] = ids
        self._columns[0][first : self._count] = self._table.new.make(ids, self._table.width)
        for column, value in zip(self._columns[1:], self._initial, strict=True):
            column[first : self._count] = value
        return np.arange(first, self._count)


def _grown(array: Array, room: int) -> Array:
    larger = np.empty((room, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _uniform(counters: Array, seed: int, stream: int) -> Array:
    """Numbers in [0, 1), each a function of its counter, the seed and the stream alone (SplitMix64)."""
    key = _mixed(np.array([(2 * seed + stream) & 0xFFFFFFFFFFFFFFFF], np.uint64))
    with np.errstate(over="ignore"):
        mixed = _mixed((counters + np.uint64(1)) * np.uint64(_GOLDEN) + key)
    return (mixed >> np.uint64(40)) * (1.0 / (1 << 24))


def _mixed(words: Array) -> Array:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = words ^ (words >> np.uint64(31))
    return mixed
