"""The outer optimizer of a local training: one of Keras's, on the model's own weights."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from shoal.errors import CannotDistribute, UsageError
from shoal.hook.backends.base import updated_by
from shoal.hook.served.shard_optimizer import levels
from shoal.strategies.schema import Array
from shoal.training.engine import Engine, StepShape
from shoal.training.optimizer import Named
from shoal.training.replicas import round_shape
from shoal.training.run import Run


class OuterOptimizers:
    """Those that Shoal chose, from a fit for the next one: as long as the script has the model."""

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def of(self, model: Any) -> Any:
        if model not in self._by_model:
            self._by_model[model] = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        return self._by_model[model]


class KerasOuter:
    """An `OuterOptimizer`."""

    def __init__(self, engine: Engine, optimizer: Any, variables: Sequence[Any]) -> None:
        self._engine = engine
        self._optimizer = optimizer
        self._variables = list(variables)

    def apply(self, moves: Sequence[Array], places: range | None = None, counts: bool = True) -> None:
        variables = self._variables if places is None else self._variables[places.start : places.stop]
        gradients = [
            keras.ops.convert_to_tensor(move, dtype=variable.dtype)
            for move, variable in zip(moves, variables, strict=True)
        ]
        before = np.array(self._engine.read(self._optimizer.iterations))
        self._optimizer.apply(gradients, variables)
        if not counts:
            self._engine.write([self._optimizer.iterations], [before])

    def state(self) -> list[Array]:
        return [self._engine.read(variable) for variable in self._optimizer.variables]

    def set_state(self, values: Sequence[Array]) -> None:
        self._engine.write(self._optimizer.variables, values)

    def named(self) -> list[Named]:
        return [(variable.path, tuple(variable.shape)) for variable in self._optimizer.variables]

    def finish(self) -> None:
        if not getattr(self._optimizer, "use_ema", False):
            return
        self._optimizer.finalize_variable_values(self._variables)
        # On JAX weights may lie where their averages lie now: no update could use both up.
        self._engine.write(self._variables, [np.array(self._engine.read(variable)) for variable in self._variables])


def outer_of(run: Run, model: Any, engine: Engine, shape: StepShape, given: Any) -> KerasOuter:
    """The optimizer that a strategy was given, or the usual one. UsageError if it can't be this model's outer one."""
    variables = engine.variables
    _refuse_averages(variables.optimizers)
    optimizer = run.memory.of(OuterOptimizers).of(model) if given is None else given
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"LocalSGD(outer={given!r}): expected an optimizer of keras.optimizers, such as "
            "keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)."
        )
    if any(optimizer is level for own in variables.optimizers for level in levels(own)):
        raise UsageError(
            f"LocalSGD(outer=...): this {type(optimizer).__name__} is the model's own optimizer too, of which every "
            "replica has a state. Give it one of its own: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError(
            "LocalSGD(outer=LossScaleOptimizer(...)): no loss is scaled between replicas. Give it the optimizer inside."
        )
    moved = [variables.weights[i] for i in round_shape(variables, shape).gradients]
    if not optimizer.built:
        optimizer.build(moved)
    elif [id(v) for v in updated_by(optimizer)] != [id(v) for v in moved]:
        raise UsageError(
            f"LocalSGD(outer=...): this {type(optimizer).__name__} has trained other weights than this model's. Make "
            "one for each model."
        )
    return KerasOuter(engine, optimizer, moved)


def _refuse_averages(optimizers: Sequence[Any]) -> None:
    if any(getattr(level, "use_ema", False) for own in optimizers for level in levels(own)):
        raise CannotDistribute(
            "the model's optimizer keeps averages of the weights (use_ema), and with LocalSGD every replica has an "
            "optimizer of its own. Give use_ema to LocalSGD's outer optimizer, or use --strategy allreduce."
        )
