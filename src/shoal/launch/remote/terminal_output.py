"""What workers of other hosts print, for the terminal of this one: written by a thread, so nobody waits for a terminal.

A terminal that takes nothing (Ctrl-S, a pager) or that is gone (`| head`) must not hold up who watches the workers.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque

LIMIT = 8 << 20  # bytes that wait for the terminal; what comes then is not shown


class TerminalOutput:
    """From its first `write` to `close`."""

    def __init__(self, fds: dict[int, int] | None = None) -> None:
        """`fds`: where the streams 1 and 2 lead, if not to this process's own."""
        self._fds = fds
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._size = self._lost = 0  # bytes
        self._gone: set[int] = set()  # streams that nobody reads any more
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def write(self, stream: int, data: bytes) -> None:
        """At once, or when the terminal takes it. What it does not take for too long is counted, and not shown."""
        with self._changed:
            if stream in self._gone or self._is_closed:
                return
            if self._size + len(data) > LIMIT:
                self._lost += len(data)
                return
            if self._lost:
                note = f"shoal: {self._lost:,} bytes of output are not shown: the terminal took nothing\n".encode()
                self._waiting.append((stream, note))
                self._size, self._lost = self._size + len(note), 0
            self._waiting.append((stream, data))
            self._size += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-terminal", daemon=True)
                self._thread.start()

    def drain(self, within: float) -> bool:
        """Wait until all is written. Whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._size, within)

    def close(self) -> None:
        """Nothing more is written. A thread that is stuck in a write ends with this process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            is_stuck = self._size > 0
        if self._thread is not None and not is_stuck:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                stream, data = self._waiting.popleft()
            is_gone = stream in self._gone or not self._put(stream, data)
            with self._changed:
                self._size -= len(data)
                if is_gone:
                    self._gone.add(stream)
                self._changed.notify_all()

    def _put(self, stream: int, data: bytes) -> bool:
        """Whether somebody reads that stream."""
        view = memoryview(data)
        try:
            fd = self._fd(stream)
            while view:
                try:
                    view = view[os.write(fd, view) :]
                except BlockingIOError:  # somebody else has made it so
                    select.select([], [fd], [])
        except (OSError, ValueError):
            return False
        return True

    def _fd(self, stream: int) -> int:
        if self._fds is not None:
            return self._fds[stream]
        out = sys.stdout if stream == 1 else sys.stderr
        out.flush()
        return out.fileno()
