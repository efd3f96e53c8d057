"""Jobs that train one method at a time, whose turn it is. Standard library only.

The bench writes a turn to a file, under its number; who it is for trains, and writes an answer. In between all wait.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

SENT = Path("/sys/class/net/cable/statistics/tx_bytes")
OURS, PEER = "shoal", "ddp"
LOOK = 0.02  # seconds between two looks


class Marks:
    """When each step (or round) ended, and what had left this host by then."""

    def __init__(self, between: int, skipped: int) -> None:
        """`between`: steps from one mark to the next. `skipped`: marks at the beginning that do not count."""
        self.between = between
        self.skipped = skipped
        self.last = 0  # and those at the end
        self._marks: list[tuple[float, int]] = []

    def add(self) -> None:
        self._marks.append((time.perf_counter(), int(SENT.read_text()) if SENT.exists() else 0))

    def told(self) -> dict[str, float]:
        """Of a step: seconds and bytes."""
        counted = self._marks[self.skipped : len(self._marks) - self.last]
        (begun, before), (ended, after) = counted[0], counted[-1]
        steps = (len(counted) - 1) * self.between
        return {"steps": steps, "seconds": (ended - begun) / steps, "bytes": (after - before) / steps}


class Turn:
    """What is to be trained now, and by whom."""

    def __init__(self, folder: Path, number: int, wish: dict[str, object]) -> None:
        self._answer = folder / f"{wish['who']}-{number}"
        self.who = str(wish["who"])
        self.method = str(wish["method"])
        self.steps = int(str(wish["steps"]))
        self.skipped = int(str(wish["skipped"]))
        self.workers = int(str(wish["workers"]))

    def answer(self, marks: Marks) -> None:
        part = self._answer.with_suffix(".part")
        part.write_text(json.dumps(marks.told()))
        os.replace(part, self._answer)


def turns(folder: Path, who: str) -> Iterator[Turn]:
    """This job's turns, as they come; ends when the bench says so."""
    number = 0
    while True:
        number += 1
        wish = folder / f"turn-{number}"
        while not wish.exists():
            time.sleep(LOOK)
        turn = Turn(folder, number, json.loads(wish.read_text()))
        if turn.method == "end":
            return
        if turn.who == who:
            yield turn
