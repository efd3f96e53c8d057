"""Which machine this is, and what its system says about a process. The membership judges it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from shoal.cluster.events import Evidence

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_PROCESSES, _TIME, _NETWORK = (Path(f"/proc/self/ns/{kind}") for kind in ("pid", "time", "net"))
_OWN_MEMORY = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def this_machine() -> str:
    """The same for two processes if, and only if, they see each other under their process ids, and have one clock.

    Names of hosts repeat: images are cloned, clouds number their machines, everybody has a `localhost`. A kernel's boot
    has an id of its own, and so have the process ids, and the clock, of each container on it.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = platform.node()
    try:
        machine = _MACHINE_ID.read_text(encoding="ascii").strip()
    except OSError:
        machine = ""
    return f"{boot} {machine} {_namespace(_PROCESSES)} {_namespace(_TIME)}"


def this_place() -> str:
    """The same for two processes only if they can share memory: one machine and network, the same files, one user.

    They reach each other through a unix socket, which is a file that only its user can open.
    """
    root = os.stat("/")
    return f"{this_machine()} {_namespace(_NETWORK)} {root.st_dev}:{root.st_ino} {os.getuid()}"


def _namespace(path: Path) -> str:
    """Which one this process is in; nothing where the system has none of this kind."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def resident_bytes() -> int:
    """Of this process."""
    try:
        return int(_OWN_MEMORY.read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def look_at(pid: int) -> Evidence | None:
    """Its state and the CPU time of all its threads; None if there is no such process to be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, even parentheses: count from the last one.
    fields = stat.rpartition(")")[2].split()
    return Evidence(state=fields[0], cpu=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND)
