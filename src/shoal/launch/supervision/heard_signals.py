"""The signals that end a run, as events that a loop can wait for."""

from __future__ import annotations

import os
import signal

from shoal.launch.supervision.decisions import InterruptHeard

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeardSignals:
    """From now on they interrupt nothing, until `close`. For the main thread, and one at a time."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _HEARD}
        self._old_fd = signal.set_wakeup_fd(self._write_fd)

    def fileno(self) -> int:
        """Readable when one has come."""
        return self._read_fd

    def hear(self) -> list[InterruptHeard]:
        """Those that have come; does not wait."""
        try:
            numbers = os.read(self._read_fd, 64)
        except BlockingIOError:
            return []
        return [
            InterruptHeard(f"it was interrupted ({signal.Signals(number).name})", 128 + number)
            for number in numbers
            if number in _HEARD
        ]

    def close(self) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read_fd)
        os.close(self._write_fd)
