"""Time as a value. Pure code takes `now`; shells take a Clock, so that a test may hold its hands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to go."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time that a wait may not pass."""

    at: float
    clock: Clock

    @classmethod
    def after(cls, seconds: float, clock: Clock | None = None) -> Deadline:
        clock = clock or SystemClock()
        return cls(clock.now() + seconds, clock)

    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - self.clock.now())

    def passed(self) -> bool:
        return self.clock.now() >= self.at
