"""Files that the chief has removed, or moved away, while others may still want to read them.

The chief holds them open until its next call but one, when all have come past that. Others of its host reach them
through its process.
"""

from __future__ import annotations

import os
import stat

from shoal.files import system

NOTHING = -1
_MOST = 100  # files


class HeldFile:
    """The chief's side."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._old: list[int] = []  # held since before the last call

    def hold(self, path: str) -> int:
        """Before it is removed. NOTHING, if it is no file, or there are too many."""
        if len(self._descriptors) >= _MOST:
            return NOTHING
        try:
            if not stat.S_ISREG(system.lstat(path).st_mode):
                return NOTHING
            descriptor = system.os_open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return NOTHING
        self._descriptors.append(descriptor)
        return descriptor

    def release_old(self) -> None:
        """The chief has come to another call. Those who have not come there yet may want what was removed before it."""
        _close(self._old)
        self._old, self._descriptors = self._descriptors, []

    def release(self) -> None:
        _close(self._old)
        _close(self._descriptors)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def place(process: int, descriptor: int) -> str | None:
    """Where another process finds it; None if it is no longer held."""
    path = f"/proc/{process}/fd/{descriptor}"
    return path if descriptor != NOTHING and system.exists(path) else None
