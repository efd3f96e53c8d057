"""A run on this machine: starts the coordinator and the workers, waits for them, leaves nothing behind.

What ends when: the coordinator says End; workers that do not follow by themselves are sent the signals of a
Farewell, one after the other; when all are gone the leash is let go, and with it the coordinator goes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec

from shoal.cluster import folders
from shoal.cluster.leash import Interrupt, Leash, Reaped, Spawned
from shoal.cluster.messages import End
from shoal.launch import logs, report
from shoal.launch.plan import Plan, WorkerPlan
from shoal.launch.processes import Process
from shoal.wire.keys import RunKey

# What stragglers get, and how many seconds after the end was known.
AFTER_SUCCESS = ((30.0, signal.SIGTERM), (32.0, signal.SIGKILL))  # an interpreter may take long to shut down
AFTER_FAILURE = ((2.0, signal.SIGTERM), (3.0, signal.SIGKILL))
ON_INTERRUPT = ((0.0, signal.SIGINT), (5.0, signal.SIGTERM), (6.0, signal.SIGKILL))
AT_ONCE = ((0.0, signal.SIGKILL),)
Farewell = tuple[tuple[float, signal.Signals], ...]

_FOLLOW_EVERY = 0.1  # seconds between two looks at the logs under --verbose
_COORDINATOR_LEAVES = 5.0  # seconds that it gets for it


def launch(plan: Plan) -> int:
    """Run it to its end; returns the exit code for the shell. UsageError if it can't be started."""
    config = plan.config
    environ = dict(plan.workers[0].environment)
    folder_of_logs = Path(config.logs)
    logs.prepare(folder_of_logs, prune=folder_of_logs.name == config.run)
    with folders.create(folders.home(environ), config.run) as folder:
        RunKey.new().save(folder / "key")
        config.save(folder)
        print(report.opening(config), file=sys.stderr, flush=True)
        end = _Launcher(plan, folder).run()
    if not end.ok:
        print(report.closing(end, config), file=sys.stderr, flush=True)
    return end.code


class _Launcher:
    """The launcher's loop. It makes no decisions about the run: it tells what it sees and does what End says."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._logs = Path(plan.config.logs)
        self._workers: dict[str, Process] = {}
        self._end: End | None = None
        self._interrupts = 0
        self._farewell: deque[tuple[float, signal.Signals]] = deque()
        self._selector = selectors.DefaultSelector()

    def run(self) -> End:
        """Start everything, wait until all workers are gone; returns the run's End."""
        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(_signals_as_bytes())
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._hear_signals(signals))
            coordinator = self._start_coordinator()
            stack.callback(coordinator.release)
            for plan in self._plan.workers:
                self._workers[plan.id] = self._start_worker(plan)
            ...
