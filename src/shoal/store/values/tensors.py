"""What a server holds of a shard, as the store sees it: arrays in a known order. The hook brings the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from shoal.codecs.shapes import Array as Array
from shoal.codecs.shapes import ArrayShape as ArrayShape
from shoal.codecs.shapes import Shapes as Shapes
from shoal.errors import BadFrame

ALIGNMENT = 64  # bytes; backends read in place only what is aligned


def offsets(sizes: Iterable[int]) -> list[int]:
    """Where arrays of so many bytes lie, one behind the other and aligned; and at last where the next would."""
    places = [0]
    for nbytes in sizes:
        places.append(places[-1] + -(-nbytes // ALIGNMENT) * ALIGNMENT)
    return places


def arrays_in(memory: Array, shapes: Sequence[ArrayShape]) -> list[Array]:
    """Arrays of these shapes, in aligned memory that has room for them."""
    places = offsets(shape.nbytes for shape in shapes)
    return [
        memory[place : place + shape.nbytes].view(shape.dtype) for place, shape in zip(places, shapes, strict=False)
    ]


def landing(shapes: Sequence[ArrayShape]) -> list[Array]:
    """New memory for arrays that are about to arrive, where a backend can read them in place."""
    room = offsets(shape.nbytes for shape in shapes)[-1]
    raw = np.empty(room + ALIGNMENT, np.uint8)
    return arrays_in(raw[-raw.ctypes.data % ALIGNMENT :], shapes)


class ShardShapes(msgspec.Struct, frozen=True):
    """What travels of one shard between workers and servers: always all of it."""

    weights: Shapes  # what a worker pulls, or supplies
    gradients: Shapes  # what a worker pushes
    exact: int = 0  # how many of the last of these are no gradients, and travel as they are
    assigned: Shapes = ()  # what a worker pushes to replace weights

    def asked(self, rows: int) -> Shapes:
        """Beside a Pull."""
        return ()

    def pulled(self, rows: int) -> Shapes:
        return self.weights

    def pushed(self, rows: int) -> Shapes:
        return self.gradients


class RowShapes(msgspec.Struct, frozen=True):
    """What travels of one part of a table: some of its rows, and which they are."""

    rows: int  # that it has
    width: int

    def asked(self, rows: int) -> Shapes:
        return (self._ids(rows),)

    def pulled(self, rows: int) -> Shapes:
        return (ArrayShape("float32", self._ids(rows).size * self.width),)

    def pushed(self, rows: int) -> Shapes:
        return (*self.asked(rows), *self.pulled(rows))

    def _ids(self, rows: int) -> ArrayShape:
        if not 0 <= rows <= self.rows:
            raise BadFrame(f"{rows:,} rows are said to come of a part that has {self.rows:,}")
        return ArrayShape("int64", rows)


AnyShapes = ShardShapes | RowShapes


class Tensors(Protocol):
    """One shard's tensors, and what updates them. Arrays given out are valid until the next `apply`."""

    @property
    def rows(self) -> int:
        """Of a part of a table: how many were ever updated. 0 for everything else."""

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        """One update; `rate` replaces the optimizer's learning rate from now on, `scale` scales this update's."""

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        """`asked`: of a part of a table, the ids of the rows."""

    def averages(self) -> Sequence[Array]:
        """What the weights become after the last update. Changes nothing."""

    def set_weights(self, weights: Sequence[Array]) -> None:
        """What a worker supplies, where there is nothing."""

    def assign(self, assigned: Sequence[Array]) -> None:
        """Weights in the place of those that are there. What is counted beside them goes on."""

    def state(self) -> Sequence[Array]: ...

    def state_shapes(self, rows: int) -> Shapes:
        """What `state` gives, and `load` takes, where so many rows were ever updated."""

    def load(self, state: Sequence[Array]) -> None: ...

    def digest(self) -> int: ...

    def listed(self, start: int) -> Sequence[Array]:
        """Of a part of a table: ids and values of some of the rows that were ever updated, from the `start`-th on."""
