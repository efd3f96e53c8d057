"""How entries lie in a file that is appended to, and when such a file is written anew. Pure.

    ┌ length, 4 bytes ┬ CRC-32, 4 bytes ┬ content ┐┌ length …

A writer may be killed in the middle of an entry, or find the disk full there. Whatever follows the last whole entry is
no entry: a reader stops there, and a writer writes over it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32

_HEAD = struct.Struct("<II")
HEAD = _HEAD.size

SMALLEST = 64 * 1024  # bytes of changes that are never too many
MULTIPLE = 4  # of the base: with more bytes of changes than that, the file is written anew


def frame(content: bytes) -> bytes:
    """An entry as it lies in the file."""
    return _HEAD.pack(len(content), crc32(content)) + content


def content_length(head: bytes, limit: int) -> int | None:
    """How long the content after this head is; None if this is no head, or of more than `limit` bytes."""
    if len(head) < HEAD:
        return None
    length, _ = _HEAD.unpack_from(head)
    return length if 0 < length <= limit else None  # none is empty: zeros, which a torn file may have, are no entry


def content_of(entry: bytes) -> bytes | None:
    """What is in this entry; None if it is not whole."""
    length = content_length(entry, len(entry) - HEAD)
    if length is None:
        return None
    content = entry[HEAD : HEAD + length]
    return content if _HEAD.unpack_from(entry)[1] == crc32(content) else None


def entries(written: bytes) -> Iterator[bytes]:
    """The contents of all whole entries, in order."""
    start = 0
    while (content := content_of(written[start : start + _length_at(written, start)])) is not None:
        yield content
        start += HEAD + len(content)


def _length_at(written: bytes, start: int) -> int:
    length = content_length(written[start : start + HEAD], len(written))
    return HEAD + (length or 0)


def is_too_long(base: int, changes: int) -> bool:
    """Whether so many bytes of changes after a base of so many make it worthwhile to write a new base.

    Every byte of a change pays at most a `MULTIPLE`-th of a byte of the next base, so a change costs the same however
    long the run is. One that takes over reads at most this much.
    """
    return changes > max(SMALLEST, MULTIPLE * base)
