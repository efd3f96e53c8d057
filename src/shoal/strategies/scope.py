"""Which strategy a script has chosen: a model that is compiled in a strategy's scope trains with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal.strategies.abstract import AbstractStrategy

S = TypeVar("S", bound="AbstractStrategy")

_entered: list[AbstractStrategy] = []
_watchers: list[Callable[[], None]] = []  # who is told when another strategy counts


@contextlib.contextmanager
def enter(strategy: S) -> Iterator[S]:
    """The strategy's scope. Scopes nest; the innermost counts."""
    _entered.append(strategy)
    try:
        _tell()
        yield strategy
    finally:
        _entered.pop()
        _tell()


def entered() -> AbstractStrategy | None:
    """The strategy of the innermost scope that is open now."""
    return _entered[-1] if _entered else None


def watch(changed: Callable[[], None]) -> None:
    """Calls this whenever a scope is entered or left."""
    _watchers.append(changed)


def _tell() -> None:
    for changed in _watchers:
        changed()
