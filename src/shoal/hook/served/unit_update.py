"""The model's optimizer, applied to a run of numbers that may be of several tensors, or a part of one.

For each way in which it treats variables (with weight decay and without) and each size of a unit there is an
optimizer of its own with one variable, made after the model's, as a shard on a server has one. Nothing of a unit
stays there: all comes from memory of the caller's and goes there. What the optimizer keeps once for all (its count of
updates, its learning rate) stays with the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.served.shard_optimizer import another_like, needs_of
from shoal.store.decisions.shards import Needs
from shoal.strategies.schema import Array
from shoal.strategies.slicing import SIZES


def why_not_in_units(optimizer: Any, variables: Sequence[Any], gradients: Sequence[str]) -> str | None:
    """Why an optimizer can't update runs of these variables' numbers; None if it can. `gradients`: their types."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return "the loss is scaled for float16"
    if needs_of(optimizer) is not Needs.SLICES:
        return f"this {kind} looks at whole tensors (clipnorm, global_clipnorm, or by its nature)"
    if keras.backend.backend() == "torch" and keras_private.public_class_of(optimizer) is keras.optimizers.Ftrl:
        return "on PyTorch Ftrl's powers are other bits where its numbers are cut"
    other = {str(keras.backend.standardize_dtype(variable.dtype)) for variable in variables} | set(gradients)
    if other != {"float32"}:
        return f"some of the weights are in {', '.join(sorted(other - {'float32'}))}"
    constrained = next((variable for variable in variables if variable.constraint is not None), None)
    if constrained is not None:
        return f"the constraint of {constrained.path} may look at the whole tensor"
    if not optimizer.built or keras_private.has_state_for(optimizer, variables)[0] < len(variables):
        return f"this {kind} was built on other variables"
    for name, listed in _lists_in(optimizer).items():
        for variable in variables:
            kept = listed[keras_private.place_of(optimizer, variable)]
            if not isinstance(kept, keras.Variable) or tuple(kept.shape) != tuple(variable.shape):
                return f"what this {kind} keeps as {name.strip('_')} does not have the shape of the weights"
    return None


def _lists_in(optimizer: Any) -> dict[str, list[Any]]:
    """What it keeps for each weight, by name. (TensorFlow has lists of its own there.)"""
    lists = keras_private.lists_in(optimizer)
    return {name: listed for name, listed in lists.items() if any(isinstance(one, keras.Variable) for one in listed)}


class _UnitProgram(NamedTuple):
    """One optimizer on one variable, and of which of all its variables each is."""

    engine: AbstractShardEngine
    order: list[str | int]  # the name of what is kept once, or the number of what is kept for each weight


class KerasUnits:
    """`UnitUpdates` of a model's optimizer."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], jit_compile: bool | None) -> None:
        self._optimizer = optimizer
        self._jit_compile = jit_compile
        self._programs: dict[tuple[int, int], _UnitProgram] = {}
        lists = _lists_in(optimizer)
        self._names = list(lists)
        places = [keras_private.place_of(optimizer, variable) for variable in variables]
        self.kept = [[lists[name][place] for place in places] for name in self._names]
        decayed = getattr(optimizer, "weight_decay", None) is not None
        self.kinds = [int(decayed and not keras_private.decays(optimizer, variable)) for variable in variables]
        self.once = {name: held for name, held in vars(optimizer).items() if isinstance(held, keras.Variable)}
        self._before: dict[str, Array] = {}
        self._after: dict[str, Array] | None = None

    def begin(self, values: Sequence[Array]) -> None:
        """An update begins. `values`: of `once`, in its order."""
        self._before = {name: np.array(value).reshape(-1) for name, value in zip(self.once, values, strict=True)}
        self._after = None

    def update(
        self,
        kind: int,
        weights: Array,
        kept: Sequence[Array],
        gradient: Array,
        new_weights: Array,
        new_kept: Sequence[Array],
    ) -> None:
        """One unit, all of its arrays of one size."""
        program = self._program(kind, weights.size)
        self._after = after = self._after or {name: value.copy() for name, value in self._before.items()}
        before = [kept[which] if isinstance(which, int) else self._before[which] for which in program.order]
        into = [new_kept[which] if isinstance(which, int) else after[which] for which in program.order]
        program.engine.update_into([weights, *before], [gradient], [new_weights, *into])

    def end(self) -> list[Array]:
        """What `once` has after the update."""
        if self._after is None:  # no unit was this worker's
            nothing = [np.zeros(SIZES[0], np.float32) for _ in range(3 + 2 * len(self.kept))]
            weights, gradient, new, *kept = nothing
            half = len(self.kept)
            self.update(0 if 0 in self.kinds else 1, weights, kept[:half], gradient, new, kept[half:])
        assert self._after is not None
        return list(self._after.values())

    def forget(self) -> None:
        """The memory that was given so far is not used any more."""
        for program in self._programs.values():
            program.engine.forget()

    def _program(self, kind: int, size: int) -> _UnitProgram:
        if (kind, size) not in self._programs:
            self._programs[kind, size] = self._make(kind, size)
        return self._programs[kind, size]

    def _make(self, kind: int, size: int) -> _UnitProgram:
        own = another_like(self._optimizer)
        variable = keras.Variable(np.zeros(size, np.float32), name="unit")
        if kind:
            own.exclude_from_weight_decay([variable])
        own.build([variable])
        numbers = {id(listed[0]): self._names.index(name) for name, listed in _lists_in(own).items()}
        names = {id(held): name for name, held in vars(own).items() if isinstance(held, keras.Variable)}
        order = [numbers[id(held)] if id(held) in numbers else names[id(held)] for held in own.variables]
        engine = registry.current().shard_engine([variable], own, self._jit_compile)
        return _UnitProgram(engine, order)
