"""How long each callback takes, without a step between Keras and its callbacks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from shoal.hook.calls.chief import ChiefOnly


class TimedCallbacks(list[Any]):
    """The callbacks of a container, which calls one after the other: from one to the next is the time of the first."""

    def __init__(self, callbacks: list[Any], seconds: dict[str, float]) -> None:
        """`seconds`, by the callback's class, are counted on."""
        super().__init__(callbacks)
        self._seconds = seconds

    def __iter__(self) -> Iterator[Any]:
        seconds = self._seconds
        for callback in super().__iter__():
            begun = time.perf_counter()
            yield callback
            name = _name(callback)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


def _name(callback: Any) -> str:
    return type(callback.inner if isinstance(callback, ChiefOnly) else callback).__name__
