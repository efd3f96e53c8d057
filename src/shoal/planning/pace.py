"""Whether steps take what was predicted. Pure: the clock is an argument."""

from __future__ import annotations

from statistics import median

from shoal.observe.amounts import duration

_FIRST = 10  # steps that are not looked at: programs are compiled, shares and cores settle
_COUNTED = 50  # steps of a comparison
_NEXT = 10  # after so many times the steps of the last comparison comes the next one


class StepPace:
    """The times between the ends of steps, compared with what was expected: soon, and then ever more rarely."""

    def __init__(self, expected: float) -> None:
        self._expected = expected
        self._last: float | None = None
        self._steps = 0
        self._due = _FIRST + _COUNTED
        self._times: list[float] = []

    def step(self, now: float) -> str | None:
        """A step is over. What there is to say of the last ones, if it is time to."""
        if self._last is not None and self._due - self._steps <= _COUNTED:
            self._times.append(now - self._last)
        self._last = now
        self._steps += 1
        if self._steps < self._due:
            return None
        actual, self._times = median(self._times), []
        self._due *= _NEXT
        return (
            f"steps take {duration(actual)}; {duration(self._expected)} were predicted: "
            f"{actual / self._expected:.2f} times that"
        )
