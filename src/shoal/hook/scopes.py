"""Which strategy a model trains with: that of the scope in which it was compiled; else what `shoal run` was told."""

from __future__ import annotations

import weakref
from typing import Any

from shoal.planning.replanning import Replanning
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.auto import Auto
from shoal.strategies.local_sgd import LocalSGD
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.pipeline import Pipeline
from shoal.strategies.scope import entered
from shoal.training.run import Run


class Scopes:
    """The strategy in whose scope each model was compiled last; as long as the script has the model."""

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, AbstractStrategy] = weakref.WeakKeyDictionary()

    def of(self, model: Any) -> AbstractStrategy | None:
        return self._by_model.get(model)

    def keep(self, model: Any, strategy: AbstractStrategy) -> None:
        self._by_model[model] = strategy


class Plans:
    """What was planned for each model; as long as the script has the model, until it is compiled anew."""

    def __init__(self) -> None:
        self._by_model: weakref.WeakKeyDictionary[Any, tuple[AbstractStrategy, Replanning | None]]
        self._by_model = weakref.WeakKeyDictionary()

    def of(self, model: Any) -> AbstractStrategy | None:
        kept = self._by_model.get(model)
        return kept[0] if kept is not None else None

    def replanning_of(self, model: Any) -> Replanning | None:
        """What compares its steps with the plan, and changes it; None if nothing was measured."""
        kept = self._by_model.get(model)
        return kept[1] if kept is not None else None

    def keep(self, model: Any, strategy: AbstractStrategy, replanning: Replanning | None) -> None:
        self._by_model[model] = strategy, replanning

    def forget(self, model: Any) -> None:
        self._by_model.pop(model, None)


def strategy_of(run: Run, model: Any) -> AbstractStrategy:
    """What its scope says; else what was planned for it; else what `shoal run` was told."""
    if run.only_plans:
        return Auto(only_plans=True)
    return run.memory.of(Scopes).of(model) or run.memory.of(Plans).of(model) or strategy_in_force(run)


def strategy_in_force(run: Run) -> AbstractStrategy:
    """What the scope says that is open now; else what `shoal run` was told."""
    if (strategy := entered()) is not None:
        return strategy
    if run.strategy == "pipeline":
        return Pipeline()
    if run.strategy == "auto":
        return Auto(run.only_plans)
    if run.strategy == "local":
        return LocalSGD()
    return AllReduce() if run.servers is None else ParameterServer()
