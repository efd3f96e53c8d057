"""What a server holds of a shard, as the store sees it: arrays in a known order. The hook brings the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]

ALIGNMENT = 64  # bytes; backends read in place only what is aligned


class ArrayShape(msgspec.Struct, frozen=True):
    """One array that comes beside a message."""

    dtype: str
    size: int

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


Shapes = tuple[ArrayShape, ...]


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
    """What travels of one shard between workers and servers."""

    weights: Shapes  # what a worker pulls, or supplies
    gradients: Shapes  # what a worker pushes
    exact: int = 0  # how many of the last of these are no gradients, and travel as they are


class Tensors(Protocol):
    """One shard's tensors, and what updates them. Arrays given out are valid until the next `apply`."""

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        """One update; `rate` replaces the optimizer's learning rate from now on, `scale` scales this update's."""

    def weights(self) -> Sequence[Array]: ...

    def averages(self) -> Sequence[Array]:
        """What the weights become after the last update. Changes nothing."""

    def set_weights(self, weights: Sequence[Array]) -> None: ...

    def state(self) -> Sequence[Array]: ...

    def state_shapes(self) -> Shapes:
        """What `state` gives, and `load` takes."""

    def load(self, state: Sequence[Array]) -> None: ...

    def digest(self) -> int: ...
