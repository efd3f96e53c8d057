"""Which steps a backend's own profiler looks at, and when it is turned on and off. Pure."""

from __future__ import annotations

import re

import msgspec

from shoal.observe.phases import Phase
from shoal.observe.recorder import Moment

PROFILES = "profile"  # the folder for them among the logs, with one in it for each worker
MOST_PROFILED = 100  # steps: every one of them takes megabytes
_STEP_BEGINS = (Phase.READING, Phase.COMPUTING, Phase.TRAINING)


class ProfiledSteps(msgspec.Struct, frozen=True):
    """Those from the first to the last, by the numbers that they have in a trace."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """`20`, or `20:25`. ValueError says what is wrong with it."""
        match = re.fullmatch(r"(\d{1,12})(?::(\d{1,12}))?", text)
        if match is None:
            raise ValueError("expected a step, or the first and the last of several such as 20:25")
        steps = cls(int(match[1]), int(match[2] or match[1]))
        if not 0 <= steps.last - steps.first < MOST_PROFILED:
            raise ValueError(f"expected at least 1 and at most {MOST_PROFILED} steps")
        return steps

    def __str__(self) -> str:
        return f"steps {self.first} to {self.last}" if self.last > self.first else f"step {self.first}"


class ProfileSwitch:
    """Turned on once, at the first of the steps that comes, and off after the last."""

    def __init__(self, steps: ProfiledSteps) -> None:
        self._first, self._last = steps.first, steps.last
        self.is_on = False
        self._was_on = False
        self._came_before = False  # whether this worker has begun a step before the first one

    def hear(self, moment: Moment) -> bool | None:
        """True: turn it on now. False: turn it off now. None: leave it."""
        phase, step = moment.activity.phase, moment.step
        begins = phase in _STEP_BEGINS
        # Where workers take turns, the next step of this one may be beyond the last of those that were asked for.
        is_due = self._first <= step <= self._last or (self._came_before and step > self._last)
        self._came_before |= begins and step < self._first
        if not self._was_on and begins and is_due:
            self.is_on = self._was_on = True
            self._last = max(self._last, step)
            return True
        if self.is_on and (step > self._last or phase.is_scripts):
            self.is_on = False
            return False
        return None
