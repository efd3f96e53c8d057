"""When a host that was lost is tried again: soon, then after longer and longer pauses. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE = 2.0  # seconds
LONGEST_PAUSE = 60.0
STEADY = 60.0  # seconds after which a host that came back counts as one that never was away


@dataclass(slots=True)
class _Absence:
    pause: float
    try_at: float | None  # None: it is being tried, or it is here
    back_at: float | None = None


class ReturnTimes:
    """Of all hosts that were ever lost."""

    def __init__(self) -> None:
        self._absences: dict[str, _Absence] = {}

    def lose(self, host: str, now: float) -> float:
        """It is gone. Returns the seconds until it is tried. One that is lost again soon after is tried later."""
        before = self._absences.get(host)
        was_steady = before is None or before.back_at is None or now - before.back_at >= STEADY
        pause = FIRST_PAUSE if before is None or was_steady else before.pause
        self._absences[host] = _Absence(min(2 * pause, LONGEST_PAUSE), now + pause)
        return pause

    def take_due(self, now: float) -> list[str]:
        """Those whom it is time to try. What comes of it is told with `fail` or `succeed`."""
        due = [host for host, it in self._absences.items() if it.try_at is not None and it.try_at <= now]
        for host in due:
            self._absences[host].try_at = None
        return due

    def fail(self, host: str, now: float) -> None:
        """It is not back yet."""
        absence = self._absences[host]
        absence.try_at = now + absence.pause
        absence.pause = min(2 * absence.pause, LONGEST_PAUSE)

    def succeed(self, host: str, now: float) -> None:
        """It is back."""
        self._absences[host].back_at = now

    def give_up(self, host: str) -> None:
        """It need not be tried any more."""
        self._absences.pop(host, None)
