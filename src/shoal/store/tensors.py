"""What a server holds of a shard, as the store sees it: arrays in a known order. The hook brings the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]

ALIGNMENT = 64  # bytes; backends read in place only what is aligned


class ArrayShape(msgspec.Struct, frozen=True):
    """One array that comes beside a message."""

    dtype: str
    size: int

    def empty(self) -> Array:
        """Memory for one, where a backend can read it in place."""
        dtype = np.dtype(self.dtype)
        raw = np.empty(self.size * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + self.size * dtype.itemsize].view(dtype)


Shapes = tuple[ArrayShape, ...]


def landing(shapes: Sequence[ArrayShape]) -> list[Array]:
    """Memory for arrays that are about to arrive."""
    return [shape.empty() for shape in shapes]


class ShardShapes(msgspec.Struct, frozen=True):
    """What travels of one shard between workers and servers."""

    weights: Shapes  # what a worker pulls, or supplies
    gradients: Shapes  # what a worker pushes


class Tensors(Protocol):
    """One shard's tensors, and what updates them. Arrays given out are valid until the next `apply`."""

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        """One update; `rate` replaces the optimizer's learning rate from now on, `scale` scales this update's."""

    def weights(self) -> Sequence[Array]: ...

    def set_weights(self, weights: Sequence[Array]) -> None: ...

    def state(self) -> Sequence[Array]: ...

    def state_shapes(self) -> Shapes:
        """What `state` gives, and `load` takes."""

    def load(self, state: Sequence[Array]) -> None: ...

    def digest(self) -> int: ...
