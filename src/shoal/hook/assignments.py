"""Which variables a step assigns, on the backends whose steps assign in place (TensorFlow and PyTorch)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def assignments(variables: Sequence[Any], before: Callable[[Any], None] = lambda _: None) -> Iterator[set[int]]:
    """Collects the indices of the variables that are assigned while it is open.

    `before` is called with a variable just before its first assignment.
    """
    index = {id(variable): i for i, variable in enumerate(variables)}
    assigned: set[int] = set()
    if not variables:
        yield assigned
        return
    kind: Any = type(variables[0])
    original = kind._direct_assign

    def watched(self: Any, value: Any) -> Any:
        found = index.get(id(self))
        if found is not None and found not in assigned:
            assigned.add(found)
            before(self)
        return original(self, value)

    kind._direct_assign = watched
    try:
        yield assigned
    finally:
        kind._direct_assign = original
