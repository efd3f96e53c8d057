"""Processes beside a run that it does not need: one that dies is missed by nobody but the user, who is told."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.cluster.trouble import ending
from shoal.launch.logs import Logs
from shoal.launch.processes import Process


@dataclass(frozen=True, slots=True)
class CompanionPlan:
    """One that is to be started."""

    name: str  # of its log
    title: str  # as users are told
    module: str
    arguments: tuple[str, ...] = ()
    leaves: float = 4.0  # seconds that it has after the run's end


class Companion:
    """From its making to `close`. What it says is shown to the user. It lives by its standard input."""

    def __init__(
        self, plan: CompanionPlan, folder: Path, environ: Mapping[str, str], logs: Logs, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._say = say
        self._is_over = False
        with logs.open(plan.name) as log:
            self._process = Process(
                plan.module,
                [str(folder), *plan.arguments],
                environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._thread = threading.Thread(target=self._hear, name=f"shoal-{plan.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(self._plan.leaves)
        self._process.kill_group()
        self._thread.join(1.0)
        self._process.release()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._say(line.decode(errors="replace").strip())
        if not self._is_over:
            self._process.wait(self._plan.leaves)
            how = ending(self._process.look() or 0)
            self._say(f"the process of {self._plan.title} (pid {self._process.pid}) {how}; the run goes on without it")
