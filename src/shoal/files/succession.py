"""What becomes of private files when their worker becomes the chief: they are the real ones.

The chief that died may have left a file half-written. The next one has the same file, whole, up to where its own script
is; from there on it writes for real.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterable
from typing import Protocol

from shoal.files import system
from shoal.files.private import PrivateFiles


class OpenFile(Protocol):
    """A private file that is open, or was."""

    path: str
    appends: bool

    @property
    def closed(self) -> bool: ...

    def fileno(self) -> int: ...


def publish(private: PrivateFiles, open_files: Iterable[OpenFile]) -> None:
    """Puts all private files in place, and lets those that are open go on there."""
    for path, place in private.files():
        with contextlib.suppress(OSError):
            _put(place, path)
    for file in open_files:
        if not file.closed:
            with contextlib.suppress(OSError):
                _go_on(file)


def _put(place: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if system.exists(path) and filecmp.cmp(place, path, shallow=False):
        return
    with system.open(place, "rb") as mine, system.open(path, "wb") as real:
        shutil.copyfileobj(mine, real)


def _go_on(file: OpenFile) -> None:
    """The descriptor of the private file becomes one of the real file, at the same position."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if file.appends else 0)
    real = system.os_open(file.path, flags, 0o666)
    try:
        if not file.appends:
            os.lseek(real, os.lseek(file.fileno(), 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(real, file.fileno(), inheritable=False)
    finally:
        os.close(real)
