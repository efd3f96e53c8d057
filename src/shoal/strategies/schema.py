"""What one exchange carries, entry by entry, and where each entry lies in the exchange vector.

A gradient is a weighted mean over pieces, a metric's state a sum, an integer state is taken from the first
piece (a mean of integers is nonsense). All three become one addition along the piece tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from shoal.collectives.layout import PieceRun, Vector, VectorLayout

Array = np.ndarray[Any, Any]

# Backends read an entry in place only where it is aligned; TensorFlow aborts the process where it is not.
ALIGNMENT = 64


class Combine(StrEnum):
    """How an entry's values of all pieces become one."""

    MEAN = "mean"  # weighted by the piece's share of the step's samples
    SUM = "sum"
    FIRST = "first"  # piece 0's value


class Entry(msgspec.Struct, frozen=True):
    """One array that every piece contributes to."""

    name: str
    combine: Combine
    dtype: str  # in which pieces deliver it
    shape: tuple[int, ...]

    @property
    def section(self) -> str:
        """The section of the exchange vector: half-precision values are added up in float32."""
        kind = np.dtype(self.dtype).kind if self.dtype not in ("bfloat16", "float16") else "f"
        if kind == "f":
            return "f64" if self.dtype == "float64" else "f32"
        return "i64"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class Schema:
    """The entries of an exchange in their fixed order, each at its aligned place."""

    def __init__(self, entries: Sequence[Entry], gradients: int = 0) -> None:
        """So many of the first entries are gradients."""
        self.entries = tuple(entries)
        ends = {"f32": 0, "f64": 0, "i64": 0}
        places = []
        for entry in self.entries:
            step = ALIGNMENT // (4 if entry.section == "f32" else 8)
            start = -(-ends[entry.section] // step) * step
            places.append((entry.section, start, start + entry.size))
            ends[entry.section] = start + entry.size
        self.places = tuple(places)
        self.layout = VectorLayout(**ends)
        self.gradients = tuple(
            PieceRun(Vector._fields.index(section), start, stop) for section, start, stop in places[:gradients]
        )

    def fingerprint(self) -> bytes:
        """Equal on workers that exchange the same entries in the same order."""
        # Not by name: automatic names count up with every model that a script makes.
        alike = [(entry.combine, entry.dtype, entry.shape) for entry in self.entries]
        return hashlib.blake2b(msgspec.json.encode(alike), digest_size=16).digest()

    def views(self, vector: Vector) -> list[Array]:
        """Each entry's part of a vector, flat and in place."""
        sections = {"f32": vector.f32, "f64": vector.f64, "i64": vector.i64}
        return [sections[section][start:stop] for section, start, stop in self.places]
