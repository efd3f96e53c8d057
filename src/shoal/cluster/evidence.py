"""What this machine's system says about a process. The membership judges it."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.cluster.events import Evidence

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def look_at(pid: int) -> Evidence | None:
    """Its state and the CPU time of all its threads; None if there is no such process to be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, even parentheses: count from the last one.
    fields = stat.rpartition(")")[2].split()
    return Evidence(state=fields[0], cpu=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND)
