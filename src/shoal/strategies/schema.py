"""What one exchange carries, entry by entry, and where each entry lies in the exchange vector.

A gradient is a weighted mean over pieces, a metric's state a sum, an integer state is taken from the first
piece (a mean of integers is nonsense). All three become one addition along the piece tree.

With a codec that rounds, gradients lie in its records, where that makes them smaller; all else stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from shoal.codecs.rounding import AbstractRounding
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

    def __init__(self, entries: Sequence[Entry], gradients: int = 0, rounding: AbstractRounding | None = None) -> None:
        """So many of the first entries are gradients; `rounding`: how they are rounded."""
        self.entries = tuple(entries)
        self._count = gradients
        self.rounding = rounding
        ends = {"f32": 0, "f64": 0, "i64": 0, "rounded": 0}
        places = []
        for number, entry in enumerate(self.entries):
            if rounding is not None and number < gradients and _is_rounded(entry, rounding):
                section, step, length = "rounded", 1, rounding.records(entry.size)
            else:
                section, length = entry.section, entry.size
                step = ALIGNMENT // (4 if section == "f32" else 8)
            start = -(-ends[section] // step) * step
            places.append((section, start, start + length))
            ends[section] = start + length
        self.places = tuple(places)
        self.layout = VectorLayout(**ends, rounding=rounding)
        self.gradients = tuple(
            PieceRun(Vector._fields.index(section), start, stop) for section, start, stop in places[:gradients]
        )

    def rounded(self, rounding: AbstractRounding | None) -> Schema:
        """The same entries, with their gradients rounded so."""
        return Schema(self.entries, self._count, rounding)

    def fingerprint(self) -> bytes:
        """Equal on workers that exchange the same entries in the same order."""
        # Not by name: automatic names count up with every model that a script makes.
        alike = [(entry.combine, entry.dtype, entry.shape) for entry in self.entries]
        return hashlib.blake2b(msgspec.json.encode(alike), digest_size=16).digest()

    def views(self, vector: Vector) -> list[Array]:
        """Each entry's part of a vector, flat and in place. What is rounded is given as its records."""
        sections = vector._asdict()
        return [sections[section][start:stop] for section, start, stop in self.places]


class Totals:
    """Where the sums of a schema's exchanges are read.

    With a codec that rounds, they become numbers again in a vector of its own, in which they lie as if nothing had been
    rounded. It is always the same one: backends keep hold of where a total lies.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._plain = schema.rounded(None)
        layout = self._plain.layout
        self._vector = layout.vector(layout.memory()) if schema.rounding is not None else None

    def read(self, vector: Vector) -> tuple[Vector, list[Array]]:
        """A sum with nothing rounded in it, and each entry's part of it, flat; valid until the next."""
        rounding = self._schema.rounding
        if rounding is None or self._vector is None:
            return vector, self._schema.views(vector)
        views = self._plain.views(self._vector)
        given = self._schema.views(vector)
        for (section, _, _), place, view in zip(self._schema.places, views, given, strict=True):
            if section != "rounded":
                np.copyto(place, view)
            elif place.dtype == np.float32:
                rounding.decode(view, place)
            else:
                rounding.decode(view, values := np.empty(place.size, np.float32))
                np.copyto(place, values)
        return self._vector, views


def _is_rounded(entry: Entry, rounding: AbstractRounding) -> bool:
    itemsize = {"f32": 4, "f64": 8}.get(entry.section)
    return itemsize is not None and rounding.shrinks(entry.size, itemsize)
