"""How the members of a run find its coordinator: a file in the run's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.clock import Deadline
from shoal.errors import PeerTimeout

FILE = "coordinator"
_PAUSE = 0.005


def publish(folder: Path, address: str) -> None:
    """Say where the coordinator listens. Readers see all of it or nothing."""
    draft = folder / f".{FILE}"
    draft.write_text(address, encoding="utf-8")
    os.replace(draft, folder / FILE)


def is_published(folder: Path) -> bool:
    return (folder / FILE).exists()


def find(folder: Path, deadline: Deadline) -> str:
    """Where the coordinator listens; waits for it to say so. PeerTimeout if it never does."""
    begun = deadline.clock.now()
    while True:
        try:
            return (folder / FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            if deadline.passed():
                waited = deadline.clock.now() - begun
                text = f"the coordinator did not write within {waited:.1f} s where it listens: {folder / FILE}"
                raise PeerTimeout(("coordinator",), text) from None
        # A worker and the coordinator start at the same time and this file comes within a few milliseconds.
        time.sleep(_PAUSE)
