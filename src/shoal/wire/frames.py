"""Frames: how a message and its raw buffers lie on a stream. Pure: bytes in, values out.

u32 header bytes | u16 buffers | u16 descriptors        the prefix, 8 bytes, little endian
header           | u64 size of each buffer              at most 1 MiB together
the buffers, one after another, raw
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from shoal.errors import BadFrame, UsageError

MAX_HEADER = 1 << 20
MAX_BUFFERS = (1 << 16) - 1
MAX_DESCRIPTORS = 16

_PREFIX = struct.Struct("<IHH")
PREFIX_BYTES = _PREFIX.size


class Prefix(NamedTuple):
    """What the first bytes of a frame announce."""

    header: int  # bytes of the encoded message
    buffers: int
    descriptors: int

    @property
    def length(self) -> int:
        """Bytes from the frame's start to its first buffer."""
        return PREFIX_BYTES + self.header + 8 * self.buffers


def head(header: bytes, sizes: Sequence[int] = (), descriptors: int = 0) -> bytes:
    """Everything of a frame but its buffers. Refuses to build what the other side would refuse to read."""
    if not sizes and not descriptors and len(header) <= MAX_HEADER:
        return _PREFIX.pack(len(header), 0, 0) + header
    if len(sizes) > MAX_BUFFERS or len(header) + 8 * len(sizes) > MAX_HEADER:
        raise UsageError(
            f"a message of {len(header):,} bytes with {len(sizes):,} buffers is too large for one frame: "
            f"at most {MAX_HEADER:,} bytes of header. Send large values as arrays, or in several messages."
        )
    if descriptors > MAX_DESCRIPTORS:
        raise UsageError(f"at most {MAX_DESCRIPTORS} descriptors travel with one frame, not {descriptors}")
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    return _PREFIX.pack(len(header), len(sizes), descriptors) + header + table


def read_prefix(data: bytearray, start: int) -> Prefix:
    """The prefix at `start`; a BadFrame before anything of the announced size is allocated."""
    prefix = Prefix._make(_PREFIX.unpack_from(data, start))
    if prefix.header + 8 * prefix.buffers > MAX_HEADER or prefix.descriptors > MAX_DESCRIPTORS:
        raise BadFrame(
            f"a frame announces a header of {prefix.header:,} bytes, {prefix.buffers} buffers and "
            f"{prefix.descriptors} descriptors; the limits are {MAX_HEADER:,} bytes and "
            f"{MAX_DESCRIPTORS} descriptors"
        )
    return prefix


def read_sizes(data: bytearray, start: int, prefix: Prefix) -> tuple[int, ...]:
    """The sizes of the buffers that follow the frame at `start`."""
    sizes: tuple[int, ...] = struct.unpack_from(f"<{prefix.buffers}Q", data, start + PREFIX_BYTES + prefix.header)
    return sizes
