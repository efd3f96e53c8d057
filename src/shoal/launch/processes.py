"""Processes that the launcher starts: each leads a session of its own, so that its children can be ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_LINGER = 1.0  # seconds that a dead worker's own children get to tidy up


class Process:
    """One started process. It stays in the system's table, and its id taken, until `release`."""

    def __init__(
        self,
        module: str,
        arguments: list[str],
        environment: Mapping[str, str],
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        # -P: the launcher's folder must not hide installed packages; the worker adds the script's own folder.
        # A session of its own: the terminal's Ctrl-C reaches the launcher alone, which ends the run in order.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout
        self._pidfd = os.pidfd_open(self.pid)
        self.code: int | None = None  # once it has ended; a negative code is a signal's number

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def look(self) -> int | None:
        """Its exit code, if it has ended. Leaves it in the system's table: its group's id stays taken."""
        if self.code is None:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                self.code = result.si_status if exited else -result.si_status
        return self.code

    def send(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.look() is None:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """End it and all its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Take it off the system's table, after its children are gone or were ended."""
        deadline = time.monotonic() + _LINGER
        while _children_in_group(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill_group()
        self._popen.wait()
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()
        os.close(self._pidfd)


def _children_in_group(group: int) -> bool:
    """Whether the group has living members besides its leader."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and int(path.parent.name) != group and fields[0] != "Z":
            return True
    return False
