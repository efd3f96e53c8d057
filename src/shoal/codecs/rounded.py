"""Codecs that round every number: nothing is kept from one step to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.codecs.codec import AbstractCodec
from shoal.codecs.rounding import AbstractRounding
from shoal.codecs.shapes import Array, ArrayShape, Shapes


class Rounded(AbstractCodec):
    """Gradients in the records of a rounding, those that become smaller by it; the others travel as they are."""

    def __init__(self, rounding: AbstractRounding) -> None:
        self._rounding = rounding

    def __repr__(self) -> str:
        return repr(self._rounding.name)

    @property
    def is_identity(self) -> bool:
        return False

    @property
    def rounding(self) -> AbstractRounding:
        return self._rounding

    def shapes(self, gradients: Shapes) -> Shapes:
        return tuple(self._shape(shape) if self._shrinks(shape) else shape for shape in gradients)

    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        return [self._encoded(np.ascontiguousarray(array).reshape(-1)) for array in gradients], state

    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        return [self._decoded(array, shape) for array, shape in zip(encoded, gradients, strict=True)]

    def add(self, encoded: Sequence[Array], sums: Sequence[Array]) -> None:
        for array, total in zip(encoded, sums, strict=True):
            total += self._decoded(array, ArrayShape(total.dtype.name, total.size))

    def _shrinks(self, shape: ArrayShape) -> bool:
        return shape.dtype in ("float32", "float64") and self._rounding.shrinks(shape.size, shape.nbytes // shape.size)

    def _shape(self, shape: ArrayShape) -> ArrayShape:
        return ArrayShape("uint8", self._rounding.records(shape.size) * self._rounding.nbytes)

    def _encoded(self, array: Array) -> Array:
        shape = ArrayShape(array.dtype.name, array.size)
        if not self._shrinks(shape):
            return array
        out = np.zeros(self._rounding.records(array.size), self._rounding.record)
        self._rounding.encode(array.astype(np.float32, copy=False), out)
        return out.view(np.uint8)

    def _decoded(self, array: Array, shape: ArrayShape) -> Array:
        if not self._shrinks(shape):
            return array
        values = np.empty(shape.size, np.float32)
        self._rounding.decode(array.view(self._rounding.record), values)
        return values.astype(shape.dtype, copy=False)
