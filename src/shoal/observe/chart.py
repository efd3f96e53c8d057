"""How a run went on, second by second: throughput, workers, loss. Kept with its logs, to be read when it is over.

It is bounded: when there are too many points every second one goes, and from then on they come half as often. So a run
of days has as many points as one of an hour, and its beginning is not forgotten.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

CHART = "chart.jsonl"
MOST_POINTS = 1200
_MOST_LOGS = 16
_LONGEST_NAME = 64
_LARGEST = 8 << 20  # bytes that are read

ShownLogs = dict[str, float | None]  # None: not a finite number


class ChartPoint(msgspec.Struct, frozen=True, array_like=True):
    """The run at one moment."""

    at: float  # seconds since the epoch
    step: int
    samples_per_second: float
    workers: int
    logs: ShownLogs


def shown(logs: Mapping[str, object]) -> ShownLogs:
    """What of a step's logs is a number, as far as somebody could look at so many."""
    numbers = ((name, value) for name, value in logs.items() if isinstance(value, int | float))
    return {name[:_LONGEST_NAME]: _finite(float(value)) for name, value in list(numbers)[:_MOST_LOGS]}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Thinning:
    """Which points are kept. Pure."""

    def __init__(self, every: float = 1.0, most: int = MOST_POINTS) -> None:
        self.points: list[ChartPoint] = []
        self._every = every
        self._most = most

    def is_due(self, at: float) -> bool:
        return not self.points or not 0.0 <= at - self.points[-1].at < self._every

    def add(self, point: ChartPoint) -> bool:
        """Whether others had to go for it."""
        self.points.append(point)
        if len(self.points) <= self._most:
            return False
        self.points = self.points[::-2][::-1]  # the newest stays
        self._every *= 2
        return True


class Chart:
    """A run's chart, from its coordinator. What can't be written is lost: nobody waits for it, and nothing fails."""

    def __init__(self, folder: Path) -> None:
        """One that was started in the place of another goes on where that one was."""
        self._path = folder / CHART
        self._kept = Thinning()
        for point in read(folder):
            self._kept.add(point)

    def is_due(self, at: float) -> bool:
        return self._kept.is_due(at)

    def add(self, point: ChartPoint) -> None:
        anew = self._kept.add(point)
        with contextlib.suppress(OSError):
            if anew:
                draft = self._path.with_name(f".{CHART}")
                draft.write_bytes(b"".join(map(_line, self._kept.points)))
                os.replace(draft, self._path)
            else:
                with self._path.open("ab") as file:
                    file.write(_line(point))


def _line(point: ChartPoint) -> bytes:
    return msgspec.json.encode(point) + b"\n"


def read(folder: Path) -> Sequence[ChartPoint]:
    """Lines that were cut off, or that nobody of ours wrote, are passed over."""
    decoder = msgspec.json.Decoder(ChartPoint)
    try:
        with (folder / CHART).open("rb") as file:
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(decoder.decode(line))
    return found
