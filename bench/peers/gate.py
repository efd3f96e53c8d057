"""The contestant's end of a measured slice: train on command, stand still in between.

Standard library only: every contestant imports it, whatever its environment. A contestant calls `step()` after
each finished training step. One of its processes takes the ticket and is the gatekeeper: there `step()` blocks
until the bench says go, and the fellows wait for it in their next exchange. Elsewhere `step()` returns at once.

The bench writes `{"go": SECONDS}`. The gatekeeper takes one step untimed, so that the clock starts and stops at
the same point of a step, trains for at least SECONDS and writes `{"steps": N, "seconds": S}`. Before all that it
writes `{"first_step_at": T}` once, T on the machine's monotonic clock. When the bench goes, the contestant goes.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import TextIO


class Gate:
    """Where a contestant waits between two slices. `folder` is the bench's; None: nobody measures."""

    def __init__(self, folder: str | None) -> None:
        self._line = _take_ticket(Path(folder)) if folder else None
        self._slice: float | None = None  # how long it shall last; None until the first command
        self._steps = -1  # timed steps of this slice; -1 until the untimed one is done
        self._started = 0.0

    def step(self) -> None:
        """One training step is done, its result computed. Returns when the next one may start."""
        if self._line is None:
            return
        now = time.monotonic()
        if self._slice is None:
            self._wait(self._line, {"first_step_at": now})
            return
        self._steps += 1
        if self._steps == 0:
            self._started = now
        elif now - self._started >= self._slice:
            self._wait(self._line, {"steps": self._steps, "seconds": now - self._started})

    def _wait(self, line: TextIO, answer: dict[str, float]) -> None:
        """Answer, then stand still until the next slice."""
        line.write(json.dumps(answer) + "\n")
        line.flush()
        command = line.readline()
        if not command:
            sys.exit("the bench is gone")
        self._slice = float(json.loads(command)["go"])
        self._steps = -1


def _take_ticket(folder: Path) -> TextIO | None:
    """The gatekeeper's line to the bench, or None when another process of this contestant has it."""
    try:
        (folder / "ticket").unlink()
    except FileNotFoundError:
        return None
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(folder / "gate"))
    return line.makefile("rw")
