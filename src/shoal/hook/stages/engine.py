"""What the stages of all backends share: their variables, their own optimizer, and what they give out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from shoal.checkpoint.tensor_names import OPTIMIZER, STATE, TRAINABLE, TensorName
from shoal.errors import Diverged
from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.served.shard_optimizer import HeldVariable, levels, make_optimizer, rate_variable
from shoal.hook.served.whole_optimizer import Slot, WholeOptimizer
from shoal.hook.stages.absence import make_room
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, Variables
from shoal.training.stage_engine import AbstractStageEngine


class AbstractKerasStage(AbstractStageEngine):
    """One stage of a Keras model. Between two steps the model's variables hold the committed state of this stage."""

    def __init__(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> None:
        """`whole`: what a step of the whole model gives out, as `engine` has traced it."""
        self.earlier: frozenset[int] = frozenset()  # ids of variables that an earlier stage has too
        self.is_first_trained = False  # whether no earlier stage has an optimizer
        self.whole_optimizer: Callable[[], WholeOptimizer] = lambda: WholeOptimizer(
            stage_model.model.optimizer, stage_model.model.trainable_variables
        )
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
        self._is_open = False
        self._optimizer: Any = None
        self._updates: AbstractShardEngine | None = None
        self._held = [HeldVariable(variable, variable, None) for variable in self.trainable]

    def is_float(self, tensor: int) -> bool:
        return self._of.is_float(tensor)

    def _seeds_of(self, piece: int) -> Array:
        return self._engine.seeds.of_piece(piece)[self._seeds]

    # The update -------------------------------------------------------------------------------------

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        if self._updates is not None:
            self._updates.update(gradients)
        shaped = [state.reshape(tuple(v.shape)) for state, v in zip(states, self._changed, strict=True)]
        self._engine.write(self._changed, shaped)

    def put_back(self, place: int, value: Array) -> None:
        assert self._updates is not None, "open() first"
        self._updates.write([self.trainable[place]], [value.reshape(-1)])

    def follow_rate(self, rate: float | None) -> None:
        variable = rate_variable(self._optimizer) if self._optimizer is not None else None
        if variable is None or rate is None:
            return
        if np.asarray(rate, variable.dtype) != keras.ops.convert_to_numpy(variable):
            variable.assign(rate)

    # For who plans ----------------------------------------------------------------------------------

    @property
    def variables(self) -> list[Any]:
        """Weights and states of the stage."""
        return [*self._of.variables.trainable, *self._of.variables.states]

    @property
    def changed(self) -> list[Any]:
        """The states that `apply` is given."""
        return self._changed

    @property
    def optimizer_variables(self) -> list[Any]:
        """Of the stage's own optimizer, once it is open."""
        return list(self._optimizer.variables) if self._optimizer is not None else []

    def kept(self, piece: int, rows: int) -> int:
        """Bytes of the activations of a piece on its way: here, of all that the stage's layers make."""
        return self._of.made_bytes(rows)

    # All that the stage holds -----------------------------------------------------------------------

    def open(self, tensors: Mapping[str, Array] | None = None) -> None:
        model = self._of.model
        self.shut()
        self._is_open = True
        make_room(self._engine, self.variables)
        if self.trainable:
            self._optimizer = make_optimizer(model.optimizer, self._held, anew=tensors is not None)
        if tensors is not None:
            self._take(tensors)
        if self.trainable:  # which moves the values to where its updates have them
            self._updates = registry.current().shard_engine(self.trainable, self._optimizer, model.jit_compile)

    def shut(self) -> None:
        self.forget()
        self._optimizer = self._updates = None
        self._is_open = False

    def give(self, with_optimizer: bool, apart: bool = False) -> dict[str, Array]:
        names = self._names()
        listed = [(names[id(v)], v) for v in self.variables if not apart or id(v) not in self.earlier]
        if with_optimizer:
            of_all = self.is_first_trained or not apart
            for slot, weight in self._slots():
                is_given = of_all if weight is None else not apart or id(weight) not in self.earlier
                if is_given:
                    listed.append((TensorName(OPTIMIZER, slot.number, slot.path), slot.own))
        return {str(name): np.asarray(self._engine.read(variable)) for name, variable in listed}

    def show(self, tensors: Mapping[str, Array]) -> None:
        weights = {(kind, number): v for v in self.variables for kind, number, _ in [self._names()[id(v)]]}
        optimizer = self._of.model.optimizer.variables
        found = {TensorName.of(name)[:2]: array for name, array in tensors.items()}
        known = weights | {key: optimizer[key[1]] for key in found if key[0] == OPTIMIZER}
        # Who holds the stage has its weights already, and where its updates need them.
        wanted = [key for key in found if key[0] == OPTIMIZER or not self._is_open]
        self._engine.write([known[key] for key in wanted], [found[key] for key in wanted])

    def needs(self) -> set[tuple[str, int]]:
        of_optimizer = {(OPTIMIZER, slot.number) for slot, _ in self._slots()}
        return {name[:2] for name in self._names().values()} | of_optimizer

    def finish(self) -> None:
        if self._updates is not None:
            self._updates.finalize()

    def _take(self, tensors: Mapping[str, Array]) -> None:
        names = self._names()
        wanted = [(names[id(v)], v) for v in self.variables]
        wanted += [(TensorName(OPTIMIZER, slot.number, slot.path), slot.own) for slot, _ in self._slots()]
        found = {TensorName.of(name)[:2]: array for name, array in tensors.items()}
        for name, variable in wanted:
            array = found.get(name[:2])
            if array is None or array.shape != tuple(variable.shape):
                there = "is missing" if array is None else f"has the shape {array.shape}"
                raise Diverged(f"{name} of shape {tuple(variable.shape)} {there} in what was given for this stage")
        self._engine.write([variable for _, variable in wanted], [found[name[:2]] for name, _ in wanted])

    def _names(self) -> dict[int, TensorName]:
        """Of this stage's weights and states, in a checkpoint."""
        mine, variables = {id(v) for v in self.variables}, self._engine.variables
        kinds = ((TRAINABLE, variables.trainable), (STATE, variables.states))
        return {
            id(v): TensorName(kind, number, v.path)
            for kind, listed in kinds
            for number, v in enumerate(listed)
            if id(v) in mine
        }

    def _slots(self) -> list[tuple[Slot, Any | None]]:
        """The variables of the stage's own optimizer, each with the weight that it is kept for, if it is for one."""
        if self._optimizer is None:
            return []
        kept_for = {
            id(kept): one.model
            for level in levels(self._optimizer)
            for listed in keras_private.lists_in(level).values()
            for one, kept in zip(self._held, listed, strict=False)
        }
        slots = self.whole_optimizer().slots(self._optimizer, self._held)
        return [(slot, kept_for.get(id(slot.own))) for slot in slots]
