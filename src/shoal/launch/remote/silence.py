"""For how long a coordinator was listened for in vain. Pure."""

from __future__ import annotations

_PAUSE = 1.0  # seconds between two looks: more, and this process was stopped


class CoordinatorSilence:
    """Time in which this process was stopped is no silence: the coordinator may have been stopped with it."""

    def __init__(self, now: float) -> None:
        self._heard_at = self._looked_at = now

    def hear(self, now: float) -> None:
        """It has said something."""
        self._heard_at = now

    def look(self, now: float) -> None:
        """All that had come by then was heard."""
        if now - self._looked_at > _PAUSE:
            self._heard_at += now - self._looked_at
        self._looked_at = now

    @property
    def seconds(self) -> float:
        return max(0.0, self._looked_at - self._heard_at)
