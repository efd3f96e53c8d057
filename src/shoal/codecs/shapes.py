"""Arrays by type and size, as a receiver expects them. Values only."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]


class ArrayShape(msgspec.Struct, frozen=True):
    """One array that comes beside a message."""

    dtype: str
    size: int
    dims: tuple[int, ...] = ()  # of an array that lies whole; () where nobody need know

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


Shapes = tuple[ArrayShape, ...]
