"""Folders whose names have other numbers on other workers, such as the time of day: all of them mean the chief's.

The pairs of names lie in a file that all workers of a host add to and read: a callback that has the path of one worker
may be given to another.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shoal.files import system


class Elsewhere:
    """What is known of them here."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "names")
        self._read = 0
        self._meant: dict[str, str] = {}
        self.look()

    def __bool__(self) -> bool:
        return bool(self._meant)

    def add(self, mine: str, chiefs: str) -> None:
        self._meant[mine] = chiefs
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # the run's folder is gone
            descriptor = system.os_open(self._path, flags, 0o600)
            os.write(descriptor, f"{mine}\0{chiefs}\0\n".encode(errors="surrogateescape"))
            os.close(descriptor)

    def look(self) -> None:
        """Learn what others have added."""
        with contextlib.suppress(OSError):
            if system.stat(self._path).st_size > self._read:
                with system.open(self._path, "rb") as file:
                    raw = file.read()
                self._read = len(raw)
                for line in raw.decode(errors="surrogateescape").split("\0\n")[:-1]:
                    mine, chiefs = line.split("\0")
                    self._meant.setdefault(mine, chiefs)

    def of(self, path: str) -> str:
        """The path that is meant."""
        for mine, chiefs in self._meant.items():
            if path == mine or path.startswith(mine + "/"):
                path = chiefs + path[len(mine) :]
        return path
