"""The contestant's end of a measured slice: train on command, stand still in between.

Standard library only: every contestant imports it, whatever its environment. A contestant calls `step()` after
each finished training step. Whoever the bench welcomes then is a gatekeeper: there `step()` blocks until the bench says
go. Elsewhere `step()` returns at once: the fellows wait for the gatekeeper in their next exchange. Where workers do not
wait for each other all of them are welcome.

The bench writes `{"go": SECONDS}`. The gatekeeper takes one step untimed, so that the clock starts and stops at
the same point of a step, trains for at least SECONDS and writes `{"steps": N, "seconds": S}`. Before all that it
writes `{"first_step_at": T}` once, T on the machine's monotonic clock. When the bench goes, the contestant goes.

With `{"go": SECONDS, "among_others": true}` there are other gatekeepers, whose slices must not be measured while this
one stands still already: it writes its answer, and goes on until the bench, which has all answers then, writes
`{"rest": true}`.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any


class Gate:
    """Where a contestant waits between two slices. `folder` is the bench's; None: nobody measures."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        self._line: _Line | None = None
        self._slice: float | None = None  # how long it shall last; None until the first command
        self._steps: int | None = None  # timed steps of this slice; None until the untimed one is done
        self._started = 0.0
        self._among_others = False
        self._answered = False

    def step(self, steps: int = 1) -> None:
        """So many training steps are done, their results computed. Returns when the next one may start."""
        now = time.monotonic()
        if self._folder is not None:
            # Not before: a process that never trains, such as a server, must not be one.
            self._line = _come_in(self._folder / "gate")
            self._folder = None
        if self._line is None:
            return
        if self._slice is None:
            self._line.write({"first_step_at": now})
            self._wait(self._line)
        elif self._answered:
            if self._line.has_come():
                self._line.read()
                self._wait(self._line)
        elif self._steps is None:
            self._steps, self._started = 0, now
        else:
            self._steps += steps
            if now - self._started >= self._slice:
                self._line.write({"steps": self._steps, "seconds": now - self._started})
                self._answered = True
                if not self._among_others:
                    self._wait(self._line)

    def _wait(self, line: _Line) -> None:
        """Stand still until the next slice."""
        command = line.read()
        self._slice, self._among_others = float(command["go"]), command.get("among_others", False)
        self._steps, self._answered = None, False


class _Line:
    """A gatekeeper's connection to the bench."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(address))
        self._file = self._socket.makefile("rw")

    def write(self, answer: dict[str, float]) -> None:
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()

    def read(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            sys.exit("the bench is gone")
        command: dict[str, Any] = json.loads(line)
        return command

    def is_welcome(self) -> bool:
        """Waits for the bench's word, or for its end."""
        return bool(self._file.readline())

    def has_come(self) -> bool:
        """Whether there is something to read. Only true after `read` has returned all that came before."""
        return bool(select.select([self._socket], [], [], 0)[0])


def _come_in(address: Path) -> _Line | None:
    """A gatekeeper's line to the bench, or None when it has all that it needs of this contestant.

    No file says who it is: what a script does with files, Shoal's workers do together.
    """
    try:
        line = _Line(address)
        return line if line.is_welcome() else None
    except ConnectionError:
        return None
