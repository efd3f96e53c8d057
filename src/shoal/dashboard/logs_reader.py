"""Reads what a run leaves in its logs: no more often than it changes, and for a small part of the time at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from shoal.dashboard.timeline import STEPS, Timeline, timeline
from shoal.observe import chart, record_files, story
from shoal.observe.chart import CHART, ChartPoint
from shoal.observe.story import OLDER, STORY, StoryEvent

_PART = 0.005  # of the time, which reading one thing may take
_SHORTEST, _LONGEST = 1.2, 10.0  # seconds of which a timeline is made; a record is written twice a second

Value = TypeVar("Value")


class LogsReader:
    """Of one run. Not for several threads at a time."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._story = _Kept[Sequence[StoryEvent]](lambda: list(story.read(logs)), (logs / STORY, logs / OLDER))
        self._chart = _Kept[Sequence[ChartPoint]](lambda: chart.read(logs), (logs / CHART,))
        self._timeline = _Kept[Timeline | None](self._read_timeline, ())

    def story(self) -> Sequence[StoryEvent]:
        return self._story.get()

    def chart(self) -> Sequence[ChartPoint]:
        return self._chart.get()

    def timeline(self) -> Timeline | None:
        """Of the last steps before now, or before the run's end."""
        self._timeline.files = tuple(self._logs.glob(f"*{record_files.SPANS}"))
        return self._timeline.get()

    def _read_timeline(self) -> Timeline | None:
        written = max((_time_of(path) for path in self._timeline.files), default=0.0)
        return timeline(record_files.read(self._logs, since=written - _lately(self.chart())))


def _lately(points: Sequence[ChartPoint]) -> float:
    """Seconds in which there are enough steps, as they were done lately."""
    if len(points) < 2 or points[-1].step <= points[-2].step:
        return _LONGEST
    per_step = (points[-1].at - points[-2].at) / (points[-1].step - points[-2].step)
    return min(_LONGEST, _SHORTEST + 2 * STEPS * per_step)


class _Kept(Generic[Value]):
    """What was read, as long as its files are the same, or were read a moment ago."""

    def __init__(self, read: Callable[[], Value], files: Sequence[Path]) -> None:
        self.files = files
        self._read = read
        self._seen: object = None
        self._not_before = 0.0
        self._values: list[Value] = []  # one, once it was read

    def get(self) -> Value:
        seen = [(path, _time_of(path)) for path in self.files]
        now = time.monotonic()
        if not self._values or (seen != self._seen and now >= self._not_before):
            self._values = [self._read()]
            self._seen = seen
            self._not_before = now + (time.monotonic() - now) / _PART
        return self._values[0]


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
