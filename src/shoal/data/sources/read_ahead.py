"""Loads the next steps while one computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Loads the next steps in the background while one computes."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._depth = threads + 1
        self._steps: Iterator[int] = iter(())
        self._loading: deque[tuple[int, Future[T]]] = deque()
        self._last: tuple[int, T] | None = None

    def begin(self, steps: Iterable[int]) -> None:
        """These steps will be asked for, in this order; each maybe more than once."""
        self._steps = iter(steps)
        self._loading.clear()
        self._last = None

    def take(self, step: int, load: Callable[[int], T]) -> T:
        if self._last is None or self._last[0] != step:
            while len(self._loading) < self._depth and (later := next(self._steps, None)) is not None:
                self._loading.append((later, self._pool.submit(load, later)))
            expected, future = self._loading.popleft()
            assert expected == step, f"step {step} was asked for, {expected} comes next"
            self._last = (step, future.result())
        return self._last[1]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
