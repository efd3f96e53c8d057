"""When a checkpoint is due. Pure: steps and seconds in, yes or no out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.errors import UsageError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class EverySteps:
    """A checkpoint whenever so many steps have been committed since the last one."""

    steps: int

    def due(self, step: int, last_step: int, seconds_since_last: float) -> bool:
        return step - last_step >= self.steps


@dataclass(frozen=True, slots=True)
class EverySeconds:
    """A checkpoint whenever so much time has passed since the last one, and at least one step."""

    seconds: float

    def due(self, step: int, last_step: int, seconds_since_last: float) -> bool:
        return step > last_step and seconds_since_last >= self.seconds


Schedule = EverySteps | EverySeconds


def parse(text: str) -> Schedule:
    """`30s`, `5m`, `2h`, `500steps` or `1step` as a schedule."""
    found = re.fullmatch(r"(\d{1,12})(s|m|h|steps?)|(\d{1,6}\.\d{1,6})(s|m|h)", text.strip().lower(), re.ASCII)
    if found is not None:
        number, unit = float(found[1] or found[3]), found[2] or found[4]
        if number > 0:
            return EverySeconds(number * _SECONDS[unit]) if unit in _SECONDS else EverySteps(int(number))
    raise UsageError(
        f"can't tell from {text!r} how often to write a checkpoint: expected a time such as 30s, 5m or 2h, or a number "
        "of steps such as 500steps, and more than 0 of them."
    )
