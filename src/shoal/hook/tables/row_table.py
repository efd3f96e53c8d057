"""A part of a table on a parameter server: its rows, and the model's optimizer on those that an update touches.

The optimizer is Keras's own. It works on a bucket: the rows that an update touches, with what it keeps for each, are
gathered into variables of a few fixed sizes, updated there by a compiled program, and put back. So any optimizer whose
update is element-wise works row by row: a row, its momenta and its accumulators stand still as long as nobody uses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.collectives.arrays import specs
from shoal.errors import CannotDistribute, Diverged
from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.served.shard_optimizer import new_optimizer
from shoal.store.values.rows import KeptRows, Table
from shoal.store.values.tensors import Array, ArrayShape, RowShapes, Shapes

SMALLEST = 64  # rows of a bucket
LISTED_BYTES = 8 << 20  # of rows, in one answer


class SavedRows(NamedTuple):
    """A part of a table in a checkpoint."""

    ids: Array
    columns: list[Array]  # the rows, then each array of the optimizer
    scalars: list[Array]


class RowTable:
    """One part of a table, as the store asks for it."""

    def __init__(
        self,
        table: Table,
        part: int,
        path: str,
        optimizer: Any,
        jit: bool | None,
        given: Callable[[], tuple[Array, Array] | None] = lambda: None,
    ) -> None:
        """`path`: the variable's, by which optimizers may choose. `given` tells ids and rows to begin with, if any."""
        self._table = table
        self._part = part
        self._make = (path, optimizer, jit)
        self._given = given
        self._buckets: dict[int, _Bucket] = {}
        smallest = self._bucket(0)
        self._initial = (smallest.initial(), smallest.scalars())  # before any update
        self._kept = KeptRows(table, part, self._initial[0])
        self._scalars = self._initial[1]
        self.restore: Callable[[], bool] = lambda: False  # begins from the last checkpoint, if there is one

    @property
    def optimizer(self) -> Any:
        """The model's that it updates as."""
        return self._make[1]

    @property
    def rows(self) -> int:
        return len(self._kept)

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        ids, changes = gradients[0], gradients[1].reshape(-1, self._table.width)
        self._check(ids)
        bucket = self._bucket(ids.size)
        places = self._kept.places(ids)
        columns, self._scalars = bucket.update(self._kept.gather(places), self._scalars, changes, rate, scale)
        self._kept.scatter(places, columns)

    def weights(self, asked: Sequence[Array]) -> list[Array]:
        self._check(asked[0])
        return [self._kept.read(asked[0]).reshape(-1)]

    def averages(self) -> list[Array]:
        raise AssertionError("a table is not trained with averages of its rows")

    def set_weights(self, weights: Sequence[Array]) -> None:
        """No worker has rows: they are those of the last checkpoint, of a file that was loaded, or new."""
        self._kept = KeptRows(self._table, self._part, self._initial[0])
        self._scalars = self._initial[1]
        if not self.restore():
            self._take_given()

    def assign(self, assigned: Sequence[Array]) -> None:
        raise AssertionError("no worker has the rows of a table")

    def state(self) -> list[Array]:
        return [self._kept.ids, *(column.reshape(-1) for column in self._kept.columns), *self._scalars]

    def state_shapes(self, rows: int) -> Shapes:
        ids, column = RowShapes(self._table.rows_of(self._part), self._table.width).pushed(rows)
        scalars = [ArrayShape(spec.dtype, spec.shape[0]) for spec in specs(self._scalars)]
        return (ids, *(column for _ in self._kept.columns), *scalars)

    def load(self, state: Sequence[Array]) -> None:
        count = 1 + len(self._kept.columns)
        self._check(state[0])
        self._kept.replace(state[0], state[1:count])
        self._scalars = [np.array(scalar) for scalar in state[count:]]

    def digest(self) -> int:
        digest = hashlib.blake2b(digest_size=8)
        for array in self.state():
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return int.from_bytes(digest.digest(), "little", signed=True)

    def listed(self, start: int) -> list[Array]:
        stop = start + max(1, LISTED_BYTES // self._table.row_bytes)
        return [self._kept.ids[start:stop], self._kept.columns[0][start:stop].reshape(-1)]

    def saved(self) -> SavedRows:
        """For a checkpoint, where it lies."""
        return SavedRows(self._kept.ids, self._kept.columns, self._scalars)

    def go_on_from(self, before: RowTable) -> None:
        """With the rows of the same part, which another optimizer has updated so far."""
        self._begin_with(before._kept.ids, before._kept.columns[0])

    def load_given(self, table: Table) -> None:
        """The layer has loaded a file since: its rows come in the place of all. What is kept beside them stays, as an
        optimizer's state stays when a model loads weights. `table`: as the file says it.
        """
        self._table = table
        before, self._kept = self._kept, KeptRows(table, self._part, self._initial[0])
        places = self._kept.places(before.ids)
        self._kept.scatter(places, [self._kept.columns[0][places], *before.columns[1:]])
        self._take_given()

    def begin_from(self, parts: Sequence[SavedRows]) -> None:
        """With what a checkpoint has of this table: this part, or all parts of which each has some of its rows."""
        shapes = [scalar.shape for scalar in self._scalars]
        for saved in parts:
            others = [scalar.shape for scalar in saved.scalars]
            if len(saved.columns) != len(self._kept.columns) or others != shapes:
                raise CannotDistribute(f"the checkpoint's rows of {self._table.name} are of another optimizer")
            mine = np.flatnonzero(saved.ids % self._table.parts == self._part)
            ids = saved.ids[mine]
            self._check(ids)
            self._kept.scatter(self._kept.places(ids), [column[mine] for column in saved.columns])
        mine_now = zip(self._scalars, parts[0].scalars, strict=True)
        self._scalars = [saved.astype(scalar.dtype) for scalar, saved in mine_now]

    def _take_given(self) -> None:
        if (given := self._given()) is not None:
            ids, rows = given
            mine = np.flatnonzero(ids % self._table.parts == self._part)
            self._begin_with(ids[mine], rows[mine])

    def _begin_with(self, ids: Array, rows: Array) -> None:
        """These rows of this part; the optimizer has not seen them yet."""
        places = self._kept.places(ids)
        self._kept.scatter(places, [rows, *self._kept.gather(places)[1:]])

    def _check(self, ids: Array) -> None:
        table = self._table
        if ids.size and not (
            ids.min() >= 0 and ids.max() < table.rows and bool((ids % table.parts == self._part).all())
        ):
            raise Diverged(f"rows of another part of {table.name!r} than {self._part} of {table.parts}, or none of it")

    def _bucket(self, rows: int) -> _Bucket:
        size = max(SMALLEST, 1 << max(0, rows - 1).bit_length())
        if size not in self._buckets:
            self._buckets[size] = _Bucket(size, self._table.width, *self._make)
        return self._buckets[size]


class _Bucket:
    """Variables for so many rows, and an optimizer that updates them."""

    def __init__(self, size: int, width: int, path: str, optimizer: Any, jit: bool | None) -> None:
        self._shape = (size, width)
        self._optimizer, rows = new_optimizer(optimizer, path, self._shape)
        self._engine = registry.current().shard_engine([rows], self._optimizer, jit)
        self._every = [rows, *self._optimizer.variables]
        self._columns = [v for v in self._every if tuple(v.shape) == self._shape]
        self._scalars = [v for v in self._every if tuple(v.shape) != self._shape]
        rate = keras_private.rate_of(self._optimizer)
        held = [place for place, scalar in enumerate(self._scalars) if scalar is rate]
        self._rate = held[0] if held else None  # else a schedule's

    def initial(self) -> list[float]:
        """What the optimizer keeps for a row that was never updated."""
        return [float(self._engine.read(column)[0]) for column in self._columns[1:]]

    def scalars(self) -> list[Array]:
        """What the optimizer keeps for all rows together, as its count of updates."""
        return [np.array(self._engine.read(scalar)) for scalar in self._scalars]

    def update(
        self, columns: Sequence[Array], scalars: Sequence[Array], gradients: Array, rate: float | None, scale: float
    ) -> tuple[list[Array], list[Array]]:
        """The columns and scalars after one update. The arrays given out are to be looked at now."""
        count, own = len(gradients), list(scalars)
        if self._rate is not None:
            own[self._rate] = own[self._rate] if rate is None else np.full_like(own[self._rate], rate)
        used = own if scale == 1.0 or self._rate is None else _scaled(own, self._rate, scale)
        held = {id(v): value for v, value in zip(self._columns, map(self._padded, columns), strict=True)}
        held |= {id(v): value for v, value in zip(self._scalars, used, strict=True)}
        updated = self._engine.updated([held[id(v)] for v in self._every], [self._padded(gradients)])
        found = {id(v): value for v, value in zip(self._every, updated, strict=True)}
        after = [found[id(v)].reshape(self._shape)[:count] for v in self._columns]
        left = [np.array(found[id(v)]) for v in self._scalars]
        if self._rate is not None:
            left[self._rate] = own[self._rate]
        return after, left

    def _padded(self, rows: Array) -> Array:
        padded = np.zeros(self._shape, np.float32)
        padded[: len(rows)] = rows
        return padded.reshape(-1)


def _scaled(scalars: Sequence[Array], place: int, scale: float) -> list[Array]:
    return [scalar * scalar.dtype.type(scale) if i == place else scalar for i, scalar in enumerate(scalars)]
