"""Codecs that send only part of a gradient, array by array: the largest numbers, or a product of two thin matrices.

They leave so much out that it must come with the next gradients: ErrorFeedback keeps it. Without being asked for, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from shoal.codecs.rounding import BF16, INT8
from shoal.codecs.shapes import Array, ArrayShape, Shapes
from shoal.errors import BadFrame, UsageError

_CHUNK = 4096  # numbers of which the largest are chosen: a place among them fits 2 bytes
_ITERATIONS = 2  # of the power method that finds a matrix's largest directions
_ROUNDINGS = {"bf16": BF16, "int8": INT8}


class AbstractLossy(ABC):
    """One way to choose what is sent. Stateless; the same for the same numbers, everywhere."""

    @abstractmethod
    def applies_to(self, shape: ArrayShape) -> bool:
        """Whether such an array becomes smaller. Others travel as they are."""

    @abstractmethod
    def shapes(self, shape: ArrayShape) -> Shapes:
        """What such an array becomes."""

    @abstractmethod
    def encode(self, values: Array, shape: ArrayShape) -> list[Array]:
        """A flat float32 array."""

    @abstractmethod
    def add(self, encoded: list[Array], total: Array, shape: ArrayShape, sign: int = 1) -> None:
        """Adds what is encoded to a flat array, or takes it away. BadFrame for what no encoder gives."""


@dataclass(frozen=True)
class TopK(AbstractLossy):
    """Of every 4,096 neighbours in an array, the `fraction` with the largest magnitudes.

    `values`: how they are written, "float32", "bf16" or "int8".
    """

    fraction: float
    values: str = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.fraction, bool) or not isinstance(self.fraction, int | float) or not 0 < self.fraction < 1:
            raise UsageError(
                f"TopK({self.fraction!r}): expected the part of all numbers that is sent, more than 0 and less than 1, "
                "such as 0.01."
            )
        if self.values not in ("float32", *_ROUNDINGS):
            raise UsageError(f"TopK(values={self.values!r}): expected one of float32, {', '.join(_ROUNDINGS)}.")

    @property
    def _each(self) -> int:
        """Numbers that are kept of each chunk."""
        return max(1, round(self.fraction * _CHUNK))

    def applies_to(self, shape: ArrayShape) -> bool:
        return shape.size > _CHUNK // 2 and sum(one.nbytes for one in self.shapes(shape)) < shape.nbytes

    def shapes(self, shape: ArrayShape) -> Shapes:
        count = -(-shape.size // _CHUNK) * self._each
        rounding = _ROUNDINGS.get(self.values)
        values = ArrayShape("float32", count)
        if rounding is not None:
            values = ArrayShape("uint8", rounding.records(count) * rounding.nbytes)
        return ArrayShape("uint16", count), values

    def encode(self, values: Array, shape: ArrayShape) -> list[Array]:
        count, each = -(-values.size // _CHUNK), self._each
        if values.size % _CHUNK:
            values = np.concatenate([values, np.zeros(-values.size % _CHUNK, np.float32)])
        rows = values.reshape(count, _CHUNK)
        # Magnitudes as whole numbers, which sort like them: faster, and NaN is the largest.
        magnitudes = rows.view(np.int32) & np.int32(0x7FFFFFFF)
        places = np.argpartition(magnitudes, _CHUNK - each, axis=1)[:, _CHUNK - each :]
        places.sort(axis=1)
        kept = np.take_along_axis(rows, places, axis=1).reshape(-1)
        return [places.astype(np.uint16).reshape(-1), self._written(kept)]

    def add(self, encoded: list[Array], total: Array, shape: ArrayShape, sign: int = 1) -> None:
        places, written = encoded
        if places.size and int(places.max()) >= _CHUNK:
            raise BadFrame(f"a peer's TopK names place {places.max()} of {_CHUNK}")
        rows = np.repeat(np.arange(places.size // self._each) * _CHUNK, self._each)
        flat, values = rows + places, self._read(written, places.size)
        inside = flat < total.size  # zeros fill up the last chunk
        flat, values = flat[inside], values[inside]
        total[flat] += values if sign > 0 else -values

    def _written(self, values: Array) -> Array:
        rounding = _ROUNDINGS.get(self.values)
        if rounding is None:
            return values
        records = np.zeros(rounding.records(values.size), rounding.record)
        rounding.encode(values, records)
        return records.view(np.uint8)

    def _read(self, written: Array, count: int) -> Array:
        rounding = _ROUNDINGS.get(self.values)
        if rounding is None:
            return written
        values = np.empty(count, np.float32)
        rounding.decode(written.view(rounding.record), values)
        return values


@dataclass(frozen=True)
class LowRank(AbstractLossy):
    """A matrix as the product of two thin ones, of this rank: the directions in which it is largest (PowerSGD)."""

    rank: int

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise UsageError(f"LowRank(rank={self.rank!r}): expected a whole number, at least 1, such as 4.")

    def applies_to(self, shape: ArrayShape) -> bool:
        if len(shape.dims) < 2:
            return False
        rows, columns = _matrix(shape)
        return self.rank < min(rows, columns) and self.rank * (rows + columns) * 4 < shape.nbytes

    def shapes(self, shape: ArrayShape) -> Shapes:
        rows, columns = _matrix(shape)
        return ArrayShape("float32", rows * self.rank), ArrayShape("float32", columns * self.rank)

    def encode(self, values: Array, shape: ArrayShape) -> list[Array]:
        matrix = values.reshape(_matrix(shape))
        right = np.random.default_rng(matrix.shape).standard_normal((matrix.shape[1], self.rank)).astype(np.float32)
        with np.errstate(all="ignore"):
            for _ in range(_ITERATIONS):
                left = np.linalg.qr(matrix @ right)[0].astype(np.float32)
                right = matrix.T @ left
        return [np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)]

    def add(self, encoded: list[Array], total: Array, shape: ArrayShape, sign: int = 1) -> None:
        left, right = (array.reshape(-1, self.rank) for array in encoded)
        with np.errstate(all="ignore"):
            total += ((left if sign > 0 else -left) @ right.T).reshape(-1)


def _matrix(shape: ArrayShape) -> tuple[int, int]:
    columns = shape.dims[-1]
    return shape.size // max(1, columns), columns
