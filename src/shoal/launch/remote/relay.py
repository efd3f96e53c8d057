"""What the workers of a host print, carried to the launcher: one at its terminal, the others' logs into its folder.

The logs stay on this host, too: whoever loses the launcher still has them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from shoal.launch.remote.channel import AgentChannel, LogText, Printed

_CHUNK = 1 << 16  # bytes
_EVERY = 0.25  # seconds between two looks at the logs
_LAST = 2.0  # seconds for what was printed last


class Relay:
    """From now on standard output and error of this process, and of whoever inherits them, go to the launcher."""

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel
        self._threads = [self._carry(stream) for stream in (1, 2)]
        self._logs: Path | None = None
        self._read: dict[str, int] = {}  # of each log so far, in bytes
        self._over = threading.Event()

    def follow(self, logs: Path) -> None:
        """Carry what is written to the logs in this folder."""
        self._logs = logs
        thread = threading.Thread(target=self._follow, name="shoal-relay-logs", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Carry the last of it. Whoever still holds the streams is not waited for."""
        self._over.set()
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)
        for thread in self._threads:
            thread.join(_LAST)

    def _carry(self, stream: int) -> threading.Thread:
        reader, writer = os.pipe()
        os.dup2(writer, stream)
        os.close(writer)
        thread = threading.Thread(target=self._read_from, args=(stream, reader), name="shoal-relay", daemon=True)
        thread.start()
        return thread

    def _read_from(self, stream: int, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as source:
            while data := source.read(_CHUNK):
                if self._channel.is_let_go:
                    self._write(data)
                else:
                    self._channel.send_text(Printed(stream, data))

    def _write(self, data: bytes) -> None:
        """What was for the launcher's terminal, when the launcher's host is gone."""
        if self._logs is not None:
            with contextlib.suppress(OSError), (self._logs / "terminal.log").open("ab") as log:
                log.write(data)

    def _follow(self) -> None:
        while not self._over.wait(_EVERY) and not self._channel.is_let_go:
            self._send_new()
        if not self._channel.is_let_go:
            self._send_new()

    def _send_new(self) -> None:
        assert self._logs is not None
        for path in sorted(self._logs.glob("*.log")):
            try:
                with path.open("rb") as log:
                    log.seek(self._read.get(path.name, 0))
                    while data := log.read(_CHUNK):
                        self._channel.send_text(LogText(path.stem, data))
                    self._read[path.name] = log.tell()
            except OSError:
                continue  # it was deleted
