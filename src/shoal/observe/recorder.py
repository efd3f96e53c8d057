"""What this process does, as it goes along. Whoever wants to know reads the last moment, or hears of each.

`record` costs the making of one small value: no lock, no system call, nothing that grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from shoal.observe.counters import Counters
from shoal.observe.phases import Activity, Phase, TimeUse
from shoal.observe.time_shares import TimeShares


class Moment(NamedTuple):
    """What a process does from a time on."""

    step: int
    activity: Activity
    exchanging: bool  # it can't go on unless every worker comes
    since: float  # monotonic seconds


class Recorder:
    """One thread records, any thread reads: a moment is replaced whole."""

    def __init__(self, hears: Callable[[Moment], object] | None = None) -> None:
        """`hears` is told of every moment by the thread that records: it must not wait."""
        self._hears = hears
        self.now = Moment(0, Activity(), False, time.monotonic())
        self.samples = 0  # that were trained on in all
        self.pieces = 0  # that batches are cut into
        self.counters = Counters()
        self._seconds = dict.fromkeys(TimeUse, 0.0)  # of all phases that are over

    def record(self, phase: Phase, detail: str = "", step: int | None = None, exchanging: bool = False) -> None:
        """Something else is done from now on."""
        self._begin(
            Moment(self.now.step if step is None else step, Activity(phase, detail), exchanging, time.monotonic())
        )

    def exchange(self, exchanging: bool) -> None:
        """It does the same, and begins or ends to wait for every worker."""
        self._begin(self.now._replace(exchanging=exchanging, since=time.monotonic()))

    def wait(self, seconds: float) -> None:
        """So much of what it does now was waiting for others."""
        self._seconds[self.now.activity.phase.use] -= seconds
        self._seconds[TimeUse.WAITING] += seconds

    def shares(self) -> TimeShares:
        """Where the time has gone, with what is not over yet."""
        now = self.now
        seconds = self._seconds.copy()
        seconds[now.activity.phase.use] += time.monotonic() - now.since
        return TimeShares(seconds)

    def count(self, samples: int, pieces: int | None = None) -> None:
        """A step was committed."""
        self.samples += samples
        self.counters.step()
        self.pieces = pieces or self.pieces

    def _begin(self, moment: Moment) -> None:
        self._seconds[self.now.activity.phase.use] += moment.since - self.now.since
        self.now = moment
        if self._hears is not None:
            self._hears(moment)
