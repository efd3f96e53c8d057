"""What the Python code of a process on this host is doing, without its help: also in an endless loop, or under a lock.

The process has `answer`ed once. Then a signal makes it write its threads' stacks to a file, whatever it is in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType

from shoal.cluster.evidence import look_at
from shoal.cluster.stack_text import shortened

SIGNAL = signal.SIGRTMIN + 9
_STACK = ".stack"  # after a member's id: the file in the run's folder
_DEEPEST = 100  # calls of a thread


def answer(folder: Path, id: str) -> None:
    """From now on this process tells its stacks when it is asked."""
    file = (folder / f"{id}{_STACK}").open("ab", buffering=0)  # stays open as long as the process lives
    faulthandler.register(SIGNAL, file, all_threads=True, chain=False)


def ask(folder: Path, id: str, pid: int) -> bool:
    """Ask a process for its stacks, which `told` reads in a moment; False if it would not hear it, or die of it."""
    if not _listens(pid):
        return False
    with contextlib.suppress(OSError):
        os.truncate(folder / f"{id}{_STACK}", 0)
        os.kill(pid, SIGNAL)
        return True
    return False


class AskedStack:
    """One that was asked for its stacks: whether it has told them all. Pure."""

    def __init__(self, until: float) -> None:
        """`until`: then it is not waited for any longer."""
        self._until = until
        self._told = 0  # bytes, at the last look

    def is_told(self, size: int, now: float) -> bool:
        """Looked at now and then: it has told so many bytes. They are all when there have come no more."""
        is_whole, self._told = 0 < size == self._told, size
        return is_whole or now >= self._until


def size(folder: Path, id: str) -> int:
    """Bytes of what it has told so far."""
    try:
        return (folder / f"{id}{_STACK}").stat().st_size
    except OSError:
        return 0


def told(folder: Path, id: str, pid: int) -> str:
    """What it has told since it was asked, or why it tells nothing."""
    seen = look_at(pid)
    if seen is None:
        return ""
    if seen.state in "Tt":
        return f"{id} (pid {pid}) is stopped: `kill -CONT {pid}` lets it go on"
    try:
        lines = (folder / f"{id}{_STACK}").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"{id} (pid {pid}) does not answer: it is in a call of the system (state {seen.state})"
    return "\n".join([f"{id} (pid {pid}) is here, the last call first:", *shortened(lines)])


def of_this_process() -> str:
    """The same in a thread that still runs, for somebody on another host: the script's thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, main = threading.get_ident(), threading.main_thread().ident
    frames = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != own]
    frames.sort(key=lambda found: found[0] != main)
    lines = [line for ident, frame in frames for line in _calls(names.get(ident, "?"), frame)]
    return "\n".join(shortened(lines))


def _calls(thread: str, frame: FrameType) -> list[str]:
    calls = reversed(traceback.extract_stack(frame, _DEEPEST))
    return [
        f"Thread {thread} (most recent call first):",
        *(f'  File "{call.filename}", line {call.lineno} in {call.name}' for call in calls),
    ]


def _listens(pid: int) -> bool:
    """Whether the signal is caught: it would end a process that knows nothing of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
