"""A model that is cut into stages, for training."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import keras
import msgspec

from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.served.shard_optimizer import levels
from shoal.hook.served.whole_optimizer import WholeOptimizer
from shoal.hook.stages.absence import let_go, make_room
from shoal.hook.stages.graph import take_apart
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.holders import stage_speeds
from shoal.strategies.schema import Array
from shoal.strategies.stages import choose_cuts, costs, cut
from shoal.training.engine import StepShape
from shoal.training.stage_engine import AbstractStages


class KerasStages(AbstractStages):
    """The stages of a Keras model."""

    def __init__(
        self, model: Any, engine: AbstractEngine, shape: StepShape, count: int, speeds: Sequence[float] = ()
    ) -> None:
        """`shape`: of a step of the whole model, as its engine has traced it. `speeds`: of the workers for whom it is
        cut, where they are unequal.
        """
        self._model = model
        self._engine = engine
        apart = take_apart(model)
        cuts = choose_cuts(apart.graph, count, stage_speeds(speeds, count) if speeds else None)
        stages = cut(apart.graph, cuts)
        self.costs = costs(apart.graph, cuts)
        backend = registry.current()
        self._parts = [
            backend.stage(StageModel(model, apart, stages, number), engine, shape.only) for number in range(count)
        ]
        self.engines = self._parts
        earlier: set[int] = set()
        whole_optimizer = functools.cache(lambda: WholeOptimizer(model.optimizer, model.trainable_variables))
        for number, part in enumerate(self._parts):
            part.earlier = frozenset(earlier)
            part.is_first_trained = not any(one.trainable for one in self._parts[:number])
            part.whole_optimizer = whole_optimizer
            earlier |= {id(variable) for variable in part.variables}
        self._whole_optimizer = whole_optimizer
        calls = apart.graph.calls
        self.described = [f"{calls[one.calls[0]].layer} to {calls[one.calls[1] - 1].layer}" for one in stages]
        said = msgspec.json.encode([stages, [list(one.shape.schema.fingerprint()) for one in self.engines]])
        self.fingerprint = hashlib.blake2b(said, digest_size=16).digest()

    def let_go(self, held: Collection[int]) -> None:
        mine = {id(variable) for stage in held for variable in self._parts[stage].variables}
        others = [variable for part in self._parts for variable in part.variables if id(variable) not in mine]
        let_go(self._engine, [*others, *self._kept_by_optimizer()])

    def make_room(self, with_optimizer: bool) -> None:
        make_room(self._engine, [variable for part in self._parts for variable in part.variables])
        if with_optimizer:
            optimizer = self._model.optimizer
            if not optimizer.built:
                optimizer.build(self._model.trainable_variables)
            make_room(self._engine, self._kept_by_optimizer())
            self._engine.know_optimizers([optimizer])

    def shared(self) -> list[Any]:
        kept = {id(variable) for variable in self._kept_by_optimizer()}
        return [variable for variable in self._model.optimizer.variables if id(variable) not in kept]

    def unheld(self) -> dict[str, Array]:
        trained = [variable for part in self._parts for variable in part.trainable]
        return self._whole_optimizer().never_updated(self._model.optimizer, trained)

    def _kept_by_optimizer(self) -> list[Any]:
        """What the model's own optimizer has for each weight."""
        listed = [kept for level in levels(self._model.optimizer) for kept in keras_private.lists_in(level).values()]
        weights = {id(variable) for variable in self._model.variables}
        every = [variable for kept in listed for variable in kept if isinstance(variable, keras.Variable)]
        return [variable for variable in every if id(variable) not in weights]
