"""How far the coordinator's clock is ahead of a member's own, from questions and answers. Pure.

The answer was given at some time between the question and its arrival. If both ways take equally long that is in the
middle, and never off by more than half of the round trip: so of several round trips the shortest says most. Clocks
drift apart, so an old one says less and less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

_DRIFT = 5e-5  # seconds per second by which two clocks may drift apart
_KEPT = 16  # round trips
_EAGER = 8  # questions that are asked with every beat
_RELAXED = 10.0  # seconds between two questions after that


class RoundTrip(NamedTuple):
    """A question, by the clock of who asked; what the other clock said; and when that was heard."""

    asked: float
    told: float
    heard: float

    @property
    def ahead(self) -> float:
        """Of the other clock."""
        return self.told - (self.asked + self.heard) / 2

    def doubt(self, now: float) -> float:
        """How wrong that may be by now."""
        return (self.heard - self.asked) / 2 + _DRIFT * (now - self.heard)


def best(trips: Iterable[RoundTrip], now: float) -> RoundTrip | None:
    """The one that is least in doubt."""
    return min(trips, key=lambda trip: trip.doubt(now), default=None)


class ClockOffset:
    """What a member knows of the coordinator's clock. One thread asks and hears, any thread may look."""

    def __init__(self, machine: str) -> None:
        """`machine`: this member's own. All processes of one have the same clock.

        Unless it was copied while it ran: then both say that they are the same one, and their clocks tell otherwise.
        """
        self._machine = machine
        self._trips: deque[RoundTrip] = deque(maxlen=_KEPT)
        self._is_same = False
        self._asked: float | None = None
        self._questions = 0

    def ask(self, now: float) -> float | None:
        """The question for the next beat, which is the time; None if nothing is to be asked now."""
        is_early = self._asked is not None and now - self._asked < _RELAXED
        if self._is_same or (self._questions >= _EAGER and is_early):
            return None
        self._asked = now
        self._questions += 1
        return now

    def hear(self, asked: float, told: float, machine: str, now: float) -> None:
        """An answer."""
        if asked != self._asked or now < asked:
            return
        self._is_same = machine == self._machine and asked <= told <= now
        self._trips.append(RoundTrip(asked, told, now))

    def ahead(self, now: float) -> float | None:
        """Seconds; None as long as it is not known."""
        if self._is_same:
            return 0.0
        trip = best(tuple(self._trips), now)
        return trip.ahead if trip is not None else None
