"""How much memory there is left."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def available_memory() -> int:
    """Bytes that this process may still get: the machine's, or its control group's, whichever is less."""
    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return max(free, 0)
