"""The process that serves the run's page. The run does not need it: if it dies that is said, and nothing more."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.cluster.trouble import ending
from shoal.launch.logs import Logs
from shoal.launch.processes import Process

_NAME = "dashboard"
_LEAVES = 4.0  # seconds in which whoever watches hears of the run's end


class ServedPage:
    """From its making to `close`. What it says is shown to the user."""

    def __init__(
        self, folder: Path, port: int, environ: Mapping[str, str], logs: Logs, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._is_over = False
        with logs.open(_NAME) as log:
            self._process = Process(
                "shoal.dashboard.process",
                [str(folder), str(port)],
                environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._thread = threading.Thread(target=self._hear, name="shoal-served-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """It has its standard input to live by."""
        self._is_over = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_LEAVES)
        self._process.kill_group()
        self._thread.join(1.0)
        self._process.release()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._say(line.decode(errors="replace").strip())
        if not self._is_over:
            self._process.wait(_LEAVES)
            how = ending(self._process.look() or 0)
            self._say(f"the process of the run's page (pid {self._process.pid}) {how}; the run goes on without it")
