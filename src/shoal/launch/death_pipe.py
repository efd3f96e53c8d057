"""Tells the launcher that this process is dying before it is dead.

A killed process closes its sockets only when its memory has been given back, which takes a tenth of a second for each
gigabyte. A thread with a table of descriptors of its own closes them at once: its table goes when the thread does, and
all threads but the last go before the memory. So one thread does nothing but hold one end of a pipe in such a table.
"""

from __future__ import annotations

import ctypes
import os
import threading

_CLONE_FILES = 0x400  # linux/sched.h


def keep(fd: int) -> None:
    """Let a thread hold this descriptor until the process is killed. Where that can't be, the process holds it."""
    ready = threading.Event()
    taken = threading.Event()
    thread = threading.Thread(target=_hold, args=(fd, ready, taken), name="shoal-death-pipe", daemon=True)
    thread.start()
    ready.wait()
    if taken.is_set():
        os.close(fd)  # in this thread's table, which is no longer the other's


def _hold(fd: int, ready: threading.Event, taken: threading.Event) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FILES) == 0:
        limit = os.sysconf("SC_OPEN_MAX")
        os.closerange(0, fd)
        os.closerange(fd + 1, limit)
        taken.set()
    ready.set()
    threading.Event().wait()
