"""What the stages of all backends share: their variables, their own optimizer, and what they give out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from shoal.hook.backends import registry
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.served.shard_optimizer import HeldVariable, make_optimizer, rate_variable
from shoal.hook.served.whole_optimizer import WholeOptimizer
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, Variables
from shoal.training.stage_engine import AbstractStageEngine


class AbstractKerasStage(AbstractStageEngine):
    """One stage of a Keras model. Between two steps the model's variables hold the committed state of this stage."""

    def __init__(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> None:
        """`whole`: what a step of the whole model gives out, as `engine` has traced it."""
        self._of = stage_model
        self._engine = engine
        self.stage, self.is_last = stage_model.stage, stage_model.is_last
        weights = engine.variables.weights
        held = stage_model.variables
        trainable, states = ({id(v) for v in kind} for kind in (held.trainable, held.states))
        given = zip(whole.gradients, whole.schema.entries, strict=False)
        gradients = [(weights[i], entry.dtype) for i, entry in given if id(weights[i]) in trainable]
        changed = [weights[i] for i in whole.changed if id(weights[i]) in states]
        self.trainable = [variable for variable, _ in gradients]
        self._changed = changed
        listed = Variables([], self.trainable, changed, held.seeds, [], [])
        self.shape = PartShape(
            listed,
            [(place, dtype) for place, (_, dtype) in enumerate(gradients)],
            [len(gradients) + place for place in range(len(changed))],
            [],
            [],
            weighted=True,
        )
        places = {id(variable): place for place, variable in enumerate(engine.variables.seeds)}
        self._seeds = [places[id(variable)] for variable in held.seeds]
        self._differentiable = [tensor for tensor, _ in self.stage.receives if self.is_float(tensor)]
        self._fresh = [np.array(value) for value in engine.fresh_metrics] if self.is_last else []
        self._optimizer: Any = None
        self._updates: AbstractShardEngine | None = None
        self._held = [HeldVariable(variable, variable, None) for variable in self.trainable]

    def is_float(self, tensor: int) -> bool:
        return self._of.is_float(tensor)

    def _seeds_of(self, piece: int) -> Array:
        return self._engine.seeds.of_piece(piece)[self._seeds]

    # The update -------------------------------------------------------------------------------------

    def open(self) -> None:
        model = self._of.model
        if not self.trainable:
            return
        self._optimizer = make_optimizer(model.optimizer, self._held)
        self._updates = registry.current().shard_engine(self.trainable, self._optimizer, model.jit_compile)

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        if self._updates is not None:
            self._updates.update(gradients)
        shaped = [state.reshape(tuple(v.shape)) for state, v in zip(states, self._changed, strict=True)]
        self._engine.write(self._changed, shaped)

    def follow_rate(self, rate: float | None) -> None:
        variable = rate_variable(self._optimizer) if self._optimizer is not None else None
        if variable is None or rate is None:
            return
        if np.asarray(rate, variable.dtype) != keras.ops.convert_to_numpy(variable):
            variable.assign(rate)

    # All that the stage holds -----------------------------------------------------------------------

    def give(self, with_optimizer: bool) -> tuple[list[int], list[Array]]:
        held = self._of.variables
        arrays = [np.array(self._engine.read(variable)) for variable in (*held.trainable, *held.states)]
        if self._optimizer is None or not with_optimizer:
            return [], arrays
        slots = self._whole().slots(self._optimizer, self._held)
        arrays += [np.array(self._engine.read(slot.own)) for slot in slots]
        return [slot.number for slot in slots], arrays

    def take(self, numbers: Sequence[int], arrays: Sequence[Array], is_held: bool) -> None:
        held = self._of.variables
        weights = [*held.trainable, *held.states]
        slots = [self._of.model.optimizer.variables[number] for number in numbers]
        if not is_held:
            self._engine.write(weights, arrays[: len(weights)])
        self._engine.write(slots, arrays[len(weights) :])

    def _whole(self) -> WholeOptimizer:
        model = self._of.model
        return WholeOptimizer(model.optimizer, model.trainable_variables)
