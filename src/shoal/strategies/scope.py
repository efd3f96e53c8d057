"""Which strategy a script has chosen: a model that is compiled in a strategy's scope trains with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal.strategies.abstract import AbstractStrategy

S = TypeVar("S", bound="AbstractStrategy")

_entered: list[AbstractStrategy] = []


@contextlib.contextmanager
def enter(strategy: S) -> Iterator[S]:
    """The strategy's scope. Scopes nest; the innermost counts."""
    _entered.append(strategy)
    try:
        yield strategy
    finally:
        _entered.pop()


def entered() -> AbstractStrategy | None:
    """The strategy of the innermost scope that is open now."""
    return _entered[-1] if _entered else None
