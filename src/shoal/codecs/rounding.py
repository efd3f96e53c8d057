"""Numbers in fewer bytes, by rounding them: the form of every node of the tree of sums. Stateless.

A node's form depends on the forms of its two parts and on nothing else: not on who adds them, nor on where a vector is
cut among those who add. So the total has the same bits for any number of workers and hosts.

    piece ──encode──▶ records ──add──▶ records ··wire, shared memory··▶ records ──decode──▶ total

A record is the least that is encoded, added and decoded at once: vectors are cut between records only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import ml_dtypes
import numpy as np

from shoal.codecs.shapes import Array

_CHUNK = 1 << 17  # elements that are worked on at once: they stay in the cache
_LARGEST = 127  # of the numbers that an int8 record holds
_DITHERS = 4096  # places in the table of dithers that a record may begin at


class AbstractRounding(ABC):
    """One way to round. `records` are arrays of type `record`; `values` are float32."""

    name: str
    elements: int  # of a record; so many float32 are a whole number of cache lines
    nbytes: int  # of a record; divides a page

    @property
    def record(self) -> np.dtype[Any]:
        return np.dtype((np.void, self.nbytes))

    def records(self, size: int) -> int:
        """How many records hold so many elements."""
        return -(-size // self.elements)

    def shrinks(self, size: int, itemsize: int) -> bool:
        """Whether so many elements of this size become fewer bytes."""
        return self.records(size) * self.nbytes < size * itemsize

    def encode(self, values: Array, out: Array) -> None:
        """Rounds; what is missing to whole records is zero."""
        whole = values.size // self.elements
        if whole:
            self._encode(values[: whole * self.elements], out[:whole])
        if whole < out.size:
            last = np.zeros(self.elements, np.float32)
            last[: values.size - whole * self.elements] = values[whole * self.elements :]
            self._encode(last, out[whole:])

    def add(self, left: Array, right: Array, out: Array) -> None:
        """out = the rounded sum; it may be `left` or `right` itself."""
        step = max(1, _CHUNK // self.elements)
        one, other = (np.empty(min(step, out.size) * self.elements, np.float32) for _ in range(2))
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            for start in range(0, out.size, step):
                stop = min(start + step, out.size)
                size = (stop - start) * self.elements
                self._decode(left[start:stop], one[:size])
                self._decode(right[start:stop], other[:size])
                np.add(one[:size], other[:size], out=one[:size])
                self._encode(one[:size], out[start:stop])

    def decode(self, records: Array, out: Array) -> None:
        """What the records stand for; as much of it as `out` has elements."""
        whole = out.size // self.elements
        if whole:
            self._decode(records[:whole], out[: whole * self.elements])
        if whole * self.elements < out.size:
            last = np.empty(self.elements, np.float32)
            self._decode(records[whole:], last)
            out[whole * self.elements :] = last[: out.size - whole * self.elements]

    @abstractmethod
    def _encode(self, values: Array, out: Array) -> None: ...

    @abstractmethod
    def _decode(self, records: Array, out: Array) -> None: ...


class Bf16(AbstractRounding):
    """bfloat16: float32's range with 8 bits of precision, to the nearest."""

    name = "bf16"
    elements = 32
    nbytes = 64

    def _encode(self, values: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            np.copyto(out.view(ml_dtypes.bfloat16), values, casting="unsafe")

    def _decode(self, records: Array, out: Array) -> None:
        np.copyto(out, records.view(ml_dtypes.bfloat16))


class Int8(AbstractRounding):
    """Whole numbers of a unit: the largest magnitude of a record is 127 of them.

    Each number is rounded up or down by chance, so that what is smaller than a unit is not lost on average (dither).
    The chance is drawn from the record's own unit, so that it is the same for everybody who rounds these numbers: in
    every step, too, in which they are the same bit for bit.
    A record with a number that is not finite becomes NaN as a whole, which loss scaling sees.

        | unit: float32 | 12 bytes of nothing | 496 numbers |
    """

    name = "int8"
    elements = 496
    nbytes = 512

    def __init__(self) -> None:
        # Every one of equally many steps from -1/2 to 1/2 once, so that their mean is exactly 0.
        steps = (np.random.default_rng(1).permutation(_DITHERS) + np.float32(0.5)) / np.float32(_DITHERS) - 0.5
        table = np.concatenate([steps, steps[: self.elements]]).astype(np.float32)
        self._dithers = np.lib.stride_tricks.sliding_window_view(table, self.elements)

    def _encode(self, values: Array, out: Array) -> None:
        rows = values.reshape(-1, self.elements)
        units, numbers = self._parts(out)
        step = max(1, _CHUNK // self.elements)
        for start in range(0, len(rows), step):
            self._encode_rows(rows[start : start + step], units[start : start + step], numbers[start : start + step])

    def _encode_rows(self, rows: Array, units: Array, numbers: Array) -> None:
        with np.errstate(all="ignore"):
            largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
            unit = largest / np.float32(_LARGEST)
            # The largest must not be rounded up to 128.
            factor = np.where(unit > 0, np.float32(_LARGEST * (1 - 2.0**-20)) / largest, np.float32(0))
            factor[~np.isfinite(factor)] = 0  # the record is all zeros, or as good as; or none of its numbers counts
            scaled = rows * factor[:, None]
            scaled += self._dithers[_place(unit)]
            np.rint(scaled, out=scaled)
            unfit = ~np.isfinite(largest)
            if unfit.any():
                scaled[unfit], unit[unfit] = 1, np.nan
            np.copyto(numbers, scaled, casting="unsafe")
            units[:] = unit

    def _decode(self, records: Array, out: Array) -> None:
        units, numbers = self._parts(records)
        rows = out.reshape(-1, self.elements)
        step = max(1, _CHUNK // self.elements)
        for start in range(0, len(rows), step):
            stop = start + step
            np.multiply(numbers[start:stop], units[start:stop, None], out=rows[start:stop], dtype=np.float32)

    def _parts(self, records: Array) -> tuple[Array, Array]:
        table = records.view(np.uint8).reshape(-1, self.nbytes)
        return table[:, :4].view(np.float32)[:, 0], table[:, self.nbytes - self.elements :].view(np.int8)


BF16 = Bf16()
INT8 = Int8()


def _place(units: Array) -> Array:
    """Where in the table of dithers each record begins: as good as random, and the same for the same unit."""
    mixed = units.view(np.uint32) * np.uint32(2654435761)
    return (mixed ^ (mixed >> np.uint32(15))) % np.uint32(_DITHERS)
