"""A flag that ends waits: the control plane sets it, every wait of the data plane polls it."""

from __future__ import annotations

import os
import threading


class Wakeup:
    """An eventfd with a reason. Set once, it stays set; any thread may set it, any thread may wait on it."""

    def __init__(self) -> None:
        self._reason: BaseException | None = None
        self._lock = threading.Lock()
        self._fd = -1  # if there is none left
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self, reason: BaseException) -> None:
        """Wake every waiter with `reason`. The first reason stays: it is the one that explains the others."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                if self._fd >= 0:
                    os.eventfd_write(self._fd, 1)

    def check(self) -> None:
        """Raise the reason, if there is one."""
        if self._reason is not None:
            raise self._reason

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Give the descriptor back. `check` still works."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __del__(self) -> None:
        self.close()
