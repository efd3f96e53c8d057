"""A model that is cut into stages, for training."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from shoal.hook.backends import registry
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.stages.graph import take_apart
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.stages import choose_cuts, costs, cut
from shoal.training.engine import StepShape
from shoal.training.stage_engine import AbstractStages


class KerasStages(AbstractStages):
    """The stages of a Keras model."""

    def __init__(self, model: Any, engine: AbstractEngine, shape: StepShape, count: int) -> None:
        """`shape`: of a step of the whole model, as its engine has traced it."""
        self._model = model
        self._engine = engine
        apart = take_apart(model)
        cuts = choose_cuts(apart.graph, count)
        stages = cut(apart.graph, cuts)
        self.costs = costs(apart.graph, cuts)
        backend = registry.current()
        self.engines = [
            backend.stage(StageModel(model, apart, stages, number), engine, shape.only) for number in range(count)
        ]
        calls = apart.graph.calls
        self.described = [f"{calls[one.calls[0]].layer} to {calls[one.calls[1] - 1].layer}" for one in stages]
        said = msgspec.json.encode([stages, [list(one.shape.schema.fingerprint()) for one in self.engines]])
        self.fingerprint = hashlib.blake2b(said, digest_size=16).digest()

    def make_whole(self) -> None:
        optimizer = self._model.optimizer
        if not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        self._engine.know_optimizers([optimizer])
