"""A host's copy of the coordinator's record, in memory: as long as what a coordinator would read, and no longer."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.cluster.coordinator_log import NAME
from shoal.cluster.succession.succession_messages import RecordEntry


class RecordCopy:
    """Not for several threads."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._parts: list[bytes] = []  # of an entry that has not come whole

    def gather(self, entry: RecordEntry) -> bytes | None:
        """The content of an entry; None if more of it is to come."""
        self._parts.append(entry.content)
        if entry.more:
            return None
        whole, self._parts = b"".join(self._parts), []
        return whole

    def keep(self, content: bytes, anew: bool) -> None:
        if anew:
            self._written.clear()
        if content:
            self._written.append(content)

    def save(self, folder: Path) -> None:
        """As a coordinator finds it that is started in this folder."""
        draft = folder / f".{NAME}.copy"
        draft.write_bytes(b"".join(self._written))
        os.replace(draft, folder / NAME)
