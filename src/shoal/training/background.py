"""Something that is done while this thread goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Meanwhile(Protocol[T_co]):
    """What was begun, and may not have ended yet."""

    def check(self) -> None:
        """Raises what it has raised, if it has."""

    def result(self) -> T_co:
        """Waits for its end."""


class Overlap(Protocol):
    """A way to do something meanwhile. The simulator has another one."""

    def __call__(self, act: Callable[[], T]) -> Meanwhile[T]: ...


class InThread(Generic[T]):
    """In a thread of its own. Whatever it waits for has a deadline, so it ends."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-exchange", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._act())
        except BaseException as error:  # also RunEnded: it is raised where somebody waits
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def result(self) -> T:
        self._thread.join()
        self.check()
        return self._found[0]
