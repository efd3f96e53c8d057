"""How long each callback takes, and which one stops the training, without a step between Keras and its callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal.hook.calls.chief import ChiefOnly


class TimedCallbacks(list[Any]):
    """The callbacks of a container, which calls one after the other: from one to the next is the time of the first."""

    def __init__(
        self, callbacks: list[Any], seconds: dict[str, float], is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """`seconds`, by the callback's class, are counted on. `is_stopped`: whether the training is to stop."""
        super().__init__(callbacks)
        self._seconds = seconds
        self._is_stopped = is_stopped
        self.stopped_by = ""  # the class of the first one that stopped the training

    def __iter__(self) -> Iterator[Any]:
        seconds = self._seconds
        for callback in super().__iter__():
            was_stopped = self._is_stopped()
            begun = time.perf_counter()
            yield callback
            name = _name(callback)
            if not was_stopped and not self.stopped_by and self._is_stopped():
                self.stopped_by = name
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


def _name(callback: Any) -> str:
    return type(callback.inner if isinstance(callback, ChiefOnly) else callback).__name__
