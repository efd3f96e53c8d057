"""Which variables a step assigns, on the backends whose steps assign in place (TensorFlow and PyTorch)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shoal.hook.cut import Cut
from shoal.hook.engine import Variables


class Assigned:
    """The indices of the states and of the metrics' variables that a step assigned."""

    def __init__(self) -> None:
        self.states: set[int] = set()
        self.metrics: set[int] = set()


@contextlib.contextmanager
def assignments(
    variables: Variables, opened: Cut, before: Callable[[Any], None] = lambda _: None
) -> Iterator[Assigned]:
    """Watches a step. `before` is called with a state just before its first assignment.

    Refuses a step that assigns weights itself, or a state once the cut was taken: what it computes there from the
    weights would be an update late.
    """
    assigned = Assigned()
    states = {id(variable): i for i, variable in enumerate(variables.states)}
    metrics = {id(variable): i for i, variable in enumerate(variables.metrics)}
    trainable = {id(variable): variable for variable in variables.trainable}
    if not trainable:
        yield assigned
        return
    kind: Any = type(variables.trainable[0])
    original = kind._direct_assign

    def watched(self: Any, value: Any) -> Any:
        if id(self) in trainable:
            opened.refuse_late_work(f"assigns the weight {self.path} itself")
        if (found := states.get(id(self))) is not None:
            if opened.taken:
                opened.refuse_late_work(f"assigns {self.path} after it gave its gradients to the optimizer")
            if found not in assigned.states:
                assigned.states.add(found)
                before(self)
        elif (found := metrics.get(id(self))) is not None:
            assigned.metrics.add(found)
        return original(self, value)

    kind._direct_assign = watched
    try:
        yield assigned
    finally:
        kind._direct_assign = original
