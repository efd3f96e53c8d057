"""A part's file as it lies in memory, from the first byte of its header to the last of its tensors.

The format is that of safetensors. It is laid out here and not by the package, so that tensors are copied once, into
memory that is kept, and so that the writer may hash as it writes and stop in between. The package reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from shoal.checkpoint.dtypes import DTYPES, TO_FILE, name_of

Array = np.ndarray[Any, Any]
Layout = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype and shape of each tensor, in the file's order

_ALIGNMENT = 64  # of the first tensor; safetensors asks for 8


class Image:
    """Memory for one part, with a place for every tensor. Made once for a layout and filled for every checkpoint."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        places, offset = [], 0
        for _, dtype, shape in layout:
            places.append((offset, offset + int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize))
            offset = places[-1][1]
        header = _header(layout, places)
        self._bytes = np.empty(len(header) + offset, np.uint8)
        self._bytes[: len(header)] = np.frombuffer(header, np.uint8)
        data = self._bytes[len(header) :]
        self._tensors = [
            data[start:stop].view(DTYPES[dtype]).reshape(shape)
            for (_, dtype, shape), (start, stop) in zip(layout, places, strict=True)
        ]

    def touch(self) -> None:
        """Has the kernel put all pages in place."""
        for place in self._tensors:
            place.fill(0)

    def fill(self, arrays: Mapping[str, Array]) -> None:
        """Copies the tensors' values to their places."""
        for (name, _, _), place in zip(self.layout, self._tensors, strict=True):
            np.copyto(place, arrays[name], casting="equiv")

    def view(self) -> memoryview:
        """The file's bytes, in place."""
        return self._bytes.data


def layout_of(arrays: Mapping[str, Array]) -> Layout:
    """The order of tensors in a file. Large elements first, so that each lies where its type wants it."""
    layout = [(name, name_of(name, array.dtype), tuple(array.shape)) for name, array in arrays.items()]
    return tuple(sorted(layout, key=lambda entry: (-DTYPES[entry[1]].itemsize, entry[0])))


def _header(layout: Layout, places: list[tuple[int, int]]) -> bytes:
    """Eight bytes that say how long the rest is; then JSON, padded with spaces."""
    entries = {
        name: {"dtype": TO_FILE[dtype], "shape": shape, "data_offsets": place}
        for (name, dtype, shape), place in zip(layout, places, strict=True)
    }
    text = msgspec.json.encode(entries)
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
