"""How often something that died is started anew: so many times within an hour. Pure."""

from __future__ import annotations

_HOUR = 3600.0


class Restarts:
    """Of several places, each counted by itself."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._granted: dict[str, list[float]] = {}  # place -> when

    def grant(self, place: str, now: float) -> bool:
        """Whether one more may be started there; if so, it counts."""
        recent = [at for at in self._granted.get(place, []) if now - at < _HOUR]
        may = len(recent) < self.most
        self._granted[place] = [*recent, now] if may else recent
        return may
