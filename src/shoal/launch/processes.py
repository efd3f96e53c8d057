"""Processes that the launcher starts: each leads a group of its own, so that its children can be ended with it."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NoReturn


class Child:
    """A child of this process. Its id stays taken, so that signals can't reach a stranger, until `release`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # once it was seen to have ended; a negative code is a signal's number
        self._pidfd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def look(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.code is None:
            # WNOWAIT: it stays in the system's table, and its group's id stays its own.
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None:
                exited = result.si_code == os.CLD_EXITED
                self.code = result.si_status if exited else -result.si_status
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs; SIGKILL goes to its children too."""
        if number is signal.SIGKILL:
            self.kill_group()
        elif self.look() is None:
            os.kill(self.pid, number)
            os.kill(self.pid, signal.SIGCONT)  # one that was stopped could not obey

    def kill_group(self) -> None:
        """End the process and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or the time is up."""
        select.select([self._pidfd], [], [], seconds)

    def release(self, children_until: float = 0.0) -> None:
        """End what is left of it and give its id back. Its own children get until then to tidy up."""
        while self.look() is not None and time.monotonic() < children_until and _has_children(self.pid):
            time.sleep(0.02)
        self.kill_group()
        self._reap()
        os.close(self._pidfd)

    def _reap(self) -> None:
        os.waitpid(self.pid, 0)


class Process(Child):
    """One that this process has started itself."""

    def __init__(
        self,
        module: str,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        standard: tuple[int, ...] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        """`standard`: descriptors for all three of the standard streams."""
        given = standard or (stdin, stdout, stderr)
        # -P: what lies in the current folder must not hide installed packages from Shoal.
        # A session of its own: the terminal's Ctrl-C reaches the launcher alone, which ends the run in order.
        with hold_interrupts():
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env=environment,
                stdin=given[0],
                stdout=given[1],
                stderr=given[2],
                start_new_session=True,
                pass_fds=pass_fds,
            )
        super().__init__(self._popen.pid)
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout

    def close_pipes(self) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()

    def _reap(self) -> None:
        self._popen.wait()
        self.close_pipes()


@contextlib.contextmanager
def hold_interrupts() -> Iterator[None]:
    """Whoever is started here hears of a SIGINT only after `let_interrupts_in`: not in the middle of an import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_interrupts_in() -> None:
    """KeyboardInterrupt, at once, if one came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _has_children(group: int) -> bool:
    """Whether the group has living members besides its leader."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended between the two looks
        if int(fields[2]) == group and int(path.parent.name) != group and fields[0] != "Z":
            return True
    return False


def leave(code: int) -> NoReturn:
    """Ends a forked process as an interpreter ends: does what is to be done at exit, writes what is to be written."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)
