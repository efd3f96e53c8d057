"""Reads what a run leaves in its logs: no more often than it changes, and for a small part of the time at most.

When the run is over, it reads at once: that is what stays on the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from shoal.dashboard.timeline import STEPS, Timeline, timeline
from shoal.observe import chart, record_files, story
from shoal.observe.chart import CHART, ChartPoint
from shoal.observe.record_reader import RecentRecord
from shoal.observe.story import OLDER, STORY, StoryEvent

_PART = 0.005  # of the time, which reading one thing may take
_SHORTEST, _LONGEST = 1.2, 10.0  # seconds of which a timeline is made; a record is written twice a second

Value = TypeVar("Value")


class LogsReader:
    """Of one run. Not for several threads at a time."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._record = RecentRecord(logs)
        self._story = _Kept[Sequence[StoryEvent]](lambda: list(story.read(logs)), (logs / STORY, logs / OLDER))
        self._chart = _Kept[Sequence[ChartPoint]](lambda: chart.read(logs), (logs / CHART,))
        self._since = 0.0
        self._timeline = _Kept[Timeline | None](self._read_timeline, ())

    def story(self, at_once: bool = False) -> Sequence[StoryEvent]:
        return self._story.get(at_once)

    def chart(self, at_once: bool = False) -> Sequence[ChartPoint]:
        return self._chart.get(at_once)

    def timeline(self, at_once: bool = False) -> Timeline | None:
        """Of the last steps before now, or before the run's end."""
        self._timeline.files = tuple(self._logs.glob(f"*{record_files.SPANS}"))
        return self._timeline.get(at_once)

    def _read_timeline(self) -> Timeline | None:
        written = max((_time_of(path) for path in self._timeline.files), default=0.0)
        # Not earlier than the last time, if steps take longer now: what was left out then is not looked for.
        self._since = max(self._since, written - _lately(self.chart()))
        return timeline(self._record.read(self._since))


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

    def get(self, at_once: bool) -> Value:
        seen = [(path, _time_of(path)) for path in self.files]
        if not self._values or (seen != self._seen and (at_once or time.monotonic() >= self._not_before)):
            begun = time.thread_time()  # not what others take meanwhile
            self._values = [self._read()]
            self._seen = seen
            self._not_before = time.monotonic() + (time.thread_time() - begun) / _PART
        return self._values[0]


def _time_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
