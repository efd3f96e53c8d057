"""The signals that members get when it is time to go, one after the other. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from signal import SIGINT, SIGKILL, SIGTERM, Signals

Schedule = tuple[tuple[float, Signals], ...]  # each so many seconds after the end was known

AFTER_SUCCESS: Schedule = ((30.0, SIGTERM), (31.0, SIGKILL))  # interpreters may end slowly
AFTER_FAILURE: Schedule = ((1.0, SIGTERM), (2.0, SIGKILL))
ON_INTERRUPT: Schedule = ((0.0, SIGINT), (5.0, SIGTERM), (6.0, SIGKILL))
WITH_CHECKPOINT: Schedule = ((65.0, SIGINT), (70.0, SIGTERM), (71.0, SIGKILL))
LEAVING: Schedule = ((0.0, SIGTERM),)  # a guest leaves after its step, however long that takes
AT_ONCE: Schedule = ((0.0, SIGKILL),)


@dataclass(frozen=True, slots=True)
class InterruptPolicy:
    """How an interrupt is answered."""

    says: str  # what the first one does, to the user
    first: Schedule
    saves: bool = False  # members write a last checkpoint, and go by themselves


ENDING = InterruptPolicy("ending the run", ON_INTERRUPT)
SAVING = InterruptPolicy("writing a checkpoint and ending the run", WITH_CHECKPOINT, saves=True)
PARTING = InterruptPolicy("leaving the run", LEAVING)


class Farewell:
    """The signals that are still to be sent."""

    def __init__(self) -> None:
        self._due: deque[tuple[float, Signals]] = deque()

    def bid(self, schedule: Schedule, now: float) -> None:
        """These, instead of those that were planned."""
        self._due = deque((now + delay, number) for delay, number in schedule)

    def take(self, now: float) -> list[Signals]:
        """Those that it is time for."""
        taken = []
        while self._due and self._due[0][0] <= now:
            taken.append(self._due.popleft()[1])
        return taken

    def left(self, now: float) -> float | None:
        """Seconds until the next one; None if there is none."""
        return max(0.0, self._due[0][0] - now) if self._due else None
