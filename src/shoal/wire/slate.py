"""What a worker does now, written where it can still be read when the worker is dead or stopped.

A beat tells it a few times a second; a step takes milliseconds. The slate is a page of memory that a file in the run's
folder stands for: to write it costs no system call, and the last word on it is never older than the death.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_SIZE = 256
_HEAD = struct.Struct("<qB")  # step, length of the text that follows
_LIMIT = _SIZE - _HEAD.size


class Slate:
    """This process's slate."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)

    def write(self, step: int, doing: str) -> None:
        text = doing.encode()[: min(_LIMIT, 255)]
        head = _HEAD.pack(step, len(text))
        self._map[: len(head) + len(text)] = head + text


def read(path: Path) -> tuple[int, str] | None:
    """The step and the doing that a process last wrote; None if it has not written anything."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) != _SIZE:
        return None
    step, length = _HEAD.unpack_from(content)
    return (step, content[_HEAD.size :][:length].decode(errors="replace")) if length else None
