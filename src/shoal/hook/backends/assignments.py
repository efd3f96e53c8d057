"""Which variables a step assigns, on the backends whose steps assign in place (TensorFlow and PyTorch)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.hook.backends.base import is_seed
from shoal.hook.backends.cut import train_step_of
from shoal.training.engine import Variables


class Assigned:
    """What a step assigned, by index: among the weights and states, and among the metrics' variables."""

    def __init__(self) -> None:
        self.weights: set[int] = set()
        self.metrics: set[int] = set()


@contextlib.contextmanager
def assignments(
    model: Any,
    variables: Variables,
    before: Callable[[Any], None] = lambda _: None,
    passes: Callable[[Any], bool] = lambda _: True,
    assigned: Assigned | None = None,
) -> Iterator[Assigned]:
    """Watches a step. `before` is called with a weight or state just before its first assignment that has an effect.

    `passes`: whether an assignment is to have its effect. `assigned`: what was found of a step that goes on.
    """
    assigned = Assigned() if assigned is None else assigned
    weights = {id(variable): i for i, variable in enumerate(variables.weights)}
    metrics = {id(variable): i for i, variable in enumerate(variables.metrics)}
    seeds = {id(variable) for variable in variables.seeds}
    others = {id(variable) for variable in variables.optimizer}

    def watching(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def watched(self: Any, value: Any) -> Any:
            has_effect = passes(self)
            if (found := weights.get(id(self))) is not None:
                if found not in assigned.weights:
                    assigned.weights.add(found)
                    if has_effect:
                        before(self)
            elif (found := metrics.get(id(self))) is not None:
                assigned.metrics.add(found)
            elif id(self) in others:
                raise CannotDistribute(
                    f"{train_step_of(model)} assigns {self.path} of its optimizer itself: do that in a callback."
                )
            elif not (id(self) in seeds or is_seed(self)):
                raise CannotDistribute(
                    f"{train_step_of(model)} assigns {self.path}, which is no variable of the model. Make it, or its "
                    "layer or metric, an attribute of the model; in a loop of your own, name metrics: "
                    "`@shoal.step(model, metrics=[...])`."
                )
            return original(self, value) if has_effect else None

        return watched

    with keras_private.assigning(watching):
        yield assigned


def nothing_assigned() -> contextlib.AbstractContextManager[None]:
    """While a step runs only so that its layers get built."""
    return keras_private.assigning(lambda _: lambda self, value: None)
