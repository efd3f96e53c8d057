"""What a worker does now, written where it can still be read when the worker is dead or stopped.

A beat tells it a few times a second; a step takes milliseconds. It is a page of memory that a file in the run's folder
stands for: to write it costs no system call, and the last word on it is never older than the death.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from shoal.observe.phases import Activity, Phase
from shoal.observe.recorder import Moment

_SIZE = 256
_HEAD = struct.Struct("<qB")  # step, length of the text that follows: the phase, a line break, the detail
_LIMIT = _SIZE - _HEAD.size


class StatusPage:
    """This process's status page."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)

    def write(self, moment: Moment) -> None:
        text = f"{moment.activity.phase}\n{moment.activity.detail}".encode()[: min(_LIMIT, 255)]
        head = _HEAD.pack(moment.step, len(text))
        self._map[: len(head) + len(text)] = head + text


def read(path: Path) -> tuple[int, Activity] | None:
    """The step and what a process last wrote that it does; None if it has not written anything."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) != _SIZE:
        return None
    step, length = _HEAD.unpack_from(content)
    phase, _, detail = content[_HEAD.size :][:length].decode(errors="replace").partition("\n")
    return (step, Activity(Phase(phase), detail)) if phase in set(Phase) else None
