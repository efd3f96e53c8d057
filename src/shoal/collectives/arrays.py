"""Arrays on the wire: what describes them, and their bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  (its import gives numpy the names bfloat16, float8_e4m3fn, ...)
import msgspec
import numpy as np

from shoal.collectives.layout import Array
from shoal.errors import BadFrame, UsageError


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """An array's type and shape."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> ArraySpec:
        """UsageError for arrays of Python objects: nothing is ever pickled."""
        if array.dtype.hasobject or array.dtype.names:
            raise UsageError(
                f"an array of type {array.dtype} can't travel between workers: its elements are Python "
                "objects or records. Convert it to numbers or to fixed-size strings (numpy's 'U' or 'S' types)."
            )
        # Types that numpy itself does not know (bfloat16) are void to `str`; their name tells them.
        plain = np.dtype(array.dtype.str) == array.dtype
        return cls(array.dtype.str if plain else array.dtype.name, array.shape)

    def empty(self) -> Array:
        """Memory for such an array; BadFrame if there is no such type."""
        try:
            dtype = np.dtype(self.dtype)
            if not dtype.hasobject:
                return np.empty(self.shape, dtype)
        except (TypeError, ValueError) as error:
            raise BadFrame(f"a peer announces an array of an unknown kind: {self!r} ({error})") from error
        raise BadFrame(f"a peer announces an array of Python objects: {self!r}")

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name}{list(self.shape)}"


def view(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, in place."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def specs(arrays: Sequence[Array]) -> list[ArraySpec]:
    return [ArraySpec.of(array) for array in arrays]


def contiguous(arrays: Sequence[Array]) -> list[Array]:
    """The same arrays, copied where their bytes do not lie in one run."""
    return [np.asarray(array, order="C") for array in arrays]
