"""What one exchange adds up: a vector of four sections, and how it lies in memory.

| rounded ... | f32 ... | pad | f64 ... | pad | i64 ... | pad |       every section starts on a cache line

What is rounded is a number of records (shoal.codecs.rounding), and comes first so that a cut at a multiple of a
record's size cuts none of them. Without a codec there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from shoal.codecs.rounding import AbstractRounding
from shoal.errors import UsageError

LINE = 64  # a cache line
PAGE = 4096

Array = np.ndarray[Any, Any]


class Vector(NamedTuple):
    """The numpy arrays of one vector. All are added up element by element."""

    f32: Array
    f64: Array
    i64: Array
    rounded: Array = np.empty(0, "V1")


class Section(NamedTuple):
    """Where one of the arrays lies."""

    dtype: np.dtype[Any]
    offset: int  # bytes
    length: int  # elements

    @property
    def end(self) -> int:
        return self.offset + self.length * self.dtype.itemsize


class PieceRun(NamedTuple):
    """Elements `lo` to `hi` of the section number `section`."""

    section: int
    lo: int
    hi: int


class Loan(NamedTuple):
    """A worker's own array that stands for elements `lo` to `hi` of a section, so that it need not be copied."""

    section: int
    lo: int
    array: Array  # flat, of the section's type

    @property
    def hi(self) -> int:
        return self.lo + self.array.size


@dataclass(frozen=True, slots=True)
class VectorLayout:
    """Element counts of the sections of one exchange's vector."""

    f32: int
    f64: int = 0
    i64: int = 0
    rounded: int = 0  # records
    rounding: AbstractRounding | None = None  # of what kind they are

    def __post_init__(self) -> None:
        if min(self.f32, self.f64, self.i64, self.rounded) < 0:
            raise UsageError(f"a layout's counts can't be negative: {self}")

    @property
    def sections(self) -> tuple[Section, Section, Section, Section]:
        """In the order of a Vector's arrays."""
        return _sections(self.f32, self.f64, self.i64, self.rounded, self.rounding)

    @property
    def grain(self) -> int:
        """Bytes at whose multiples a vector may be cut."""
        return max(LINE, self.rounding.nbytes) if self.rounding is not None else LINE

    @property
    def inflation(self) -> float:
        """How many times as many bytes this vector would have if nothing of it were rounded."""
        if self.rounding is None:
            return 1.0
        return 1.0 + self.rounded * (4 * self.rounding.elements - self.rounding.nbytes) / self.nbytes

    @property
    def form(self) -> str:
        """Equal on workers that round alike."""
        return self.rounding.name if self.rounding is not None else ""

    @property
    def nbytes(self) -> int:
        """Bytes of one vector, up to a whole cache line; at least one."""
        return max(LINE, round_up(self.sections[2].end, LINE))

    def memory(self) -> memoryview:
        """Zeros for one vector in this process's own memory. On a cache line: backends read it in place."""
        return _aligned(self.nbytes).data

    def vector(self, memory: memoryview, offset: int = 0) -> Vector:
        """The vector that starts `offset` bytes into `memory`, in place."""
        return Vector(
            *(
                np.frombuffer(memory, section.dtype, section.length, offset + section.offset)
                for section in self.sections
            )
        )

    def slices(self, parts: int, grain: int) -> tuple[range, ...]:
        """The vector's bytes in `parts` runs, as equal as whole grains (multiples of the layout's own) allow."""
        grains = -(-self.nbytes // grain)
        bounds = [min(self.nbytes, grains * part // parts * grain) for part in range(parts + 1)]
        return tuple(range(lo, hi) for lo, hi in pairwise(bounds))

    def runs(self, piece: range) -> Iterator[PieceRun]:
        """The elements that lie in these bytes of the vector, section by section."""
        for number, section in enumerate(self.sections):
            lo = max(piece.start, section.offset) - section.offset
            hi = min(piece.stop, section.end) - section.offset
            if lo < hi:
                yield PieceRun(number, lo // section.dtype.itemsize, hi // section.dtype.itemsize)


@functools.cache
def _sections(
    f32: int, f64: int, i64: int, rounded: int, rounding: AbstractRounding | None
) -> tuple[Section, Section, Section, Section]:
    records = Section(rounding.record if rounding is not None else np.dtype("V1"), 0, rounded)
    first = Section(np.dtype(np.float32), round_up(records.end, LINE), f32)
    second = Section(np.dtype(np.float64), round_up(first.end, LINE), f64)
    third = Section(np.dtype(np.int64), round_up(second.end, LINE), i64)
    return first, second, third, records


def _aligned(nbytes: int) -> Array:
    room = np.zeros(nbytes + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + nbytes]


def round_up(count: int, to: int) -> int:
    return -(-count // to) * to
