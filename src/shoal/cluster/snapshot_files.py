"""What workers leave for those who come when all of them are gone: a file in the run's folder, which nobody else reads.

There is one at a time. Whoever comes to the point of which it tells writes it, unless another has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_PREFIX = "snapshot-"


class SnapshotFiles:
    """Where a run keeps what was left. Without a folder, nowhere."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def leave(self, name: str, content: Callable[[], bytes]) -> None:
        """Under this name, in the place of all others. If it can't be written there is none."""
        if self._folder is None or (self._folder / f"{_PREFIX}{name}").exists():
            return
        draft = self._folder / f".{_PREFIX}{name}-{os.getpid()}"
        try:
            draft.write_bytes(content())
            os.replace(draft, self._folder / f"{_PREFIX}{name}")
        except OSError:  # there is no room: a run without it is only less patient
            draft.unlink(missing_ok=True)
        for path in self._folder.glob(f"{_PREFIX}*"):
            if path.name != f"{_PREFIX}{name}":
                path.unlink(missing_ok=True)

    def find(self, name: str) -> bytes | None:
        """What was left under this name, whole, or nothing."""
        try:
            return (self._folder / f"{_PREFIX}{name}").read_bytes() if self._folder is not None else None
        except FileNotFoundError:
            return None
