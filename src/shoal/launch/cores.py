"""The cores of a worker: those of the whole run while it compiles, its own as soon as it trains.

Threads per backend are set by the environment; how many cores a process may use changes no numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def settle_on(cores: Iterable[int]) -> None:
    """All threads of this process stay on these cores from now on, and so do those that they start. None: anywhere."""
    wanted = set(cores)
    if not wanted:
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread.name), wanted)
