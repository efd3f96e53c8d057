"""A process whose parent is killed: it hears of that, and ends in order."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from shoal.cluster import folders
from shoal.cluster.exits import ENDED

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """SIGTERM when the parent dies, or at once if it has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


class Guest:
    """A worker that joined from here a run of elsewhere: nobody else would end it if its launcher were killed."""

    def __init__(self, parent: int, folder: Path) -> None:
        self._parent = parent
        self._folder = folder
        signal.signal(signal.SIGTERM, lambda *_: self._leave())  # until it takes part, and leaves in order
        end_with(parent)

    def end(self) -> None:
        """It has left the run. If nobody is there to tidy up after it: its folder goes, what it started, and itself."""
        if os.getppid() != self._parent:
            folders.remove(self._folder)
            os.killpg(os.getpid(), signal.SIGKILL)  # which it leads

    def _leave(self) -> None:
        self.end()
        os._exit(ENDED)
