"""A model's optimizer, as training deals with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from shoal.hook.served.shard_optimizer import LossScales, count_of, levels, rate_variable, refuse_unless_row_wise
from shoal.hook.served.shard_state import parameters_of
from shoal.hook.served.whole_optimizer import WholeOptimizer, known_to_workers, number_of_loss_scale, rates_of
from shoal.store.decisions.shards import Parameter
from shoal.training.engine import Engine, Variables
from shoal.training.optimizer import Named


class KerasOptimizer:
    """A `TrainedOptimizer`: Keras's own, or one of the user's."""

    def __init__(self, model: Any, engine: Engine, loss_scales: LossScales) -> None:
        self._model = model
        self._engine = engine
        self._loss_scales = loss_scales
        self.own = model.optimizer

    @property
    def count(self) -> Any:
        return count_of(self.own)

    @property
    def scales_loss(self) -> bool:
        return isinstance(self.own, keras.optimizers.LossScaleOptimizer)

    @property
    def keeps_averages(self) -> bool:
        return any(getattr(level, "use_ema", False) for level in levels(self.own))

    def rate(self) -> float | None:
        rate = rate_variable(self.own)
        return None if rate is None else float(keras.ops.convert_to_numpy(rate))

    def count_updates(self, updates: int) -> None:
        self.count.assign(self.count + updates)

    def remember_loss_scale(self, scale: float) -> None:
        self._loss_scales.keep(self.own, scale)

    def finish(self) -> None:
        if isinstance(self.own, keras.optimizers.Optimizer):
            self.own.finalize_variable_values(self._model.trainable_weights)
        if self.keeps_averages:  # on JAX weights lie where their averages lie now: no update could use both up
            trainable = self._engine.variables.trainable
            self._engine.write(trainable, [self._engine.read(variable) for variable in trainable])

    def parameters(self, variables: Sequence[Any]) -> list[Parameter]:
        return parameters_of(variables, self.own)

    def refuse_unless_row_wise(self) -> None:
        refuse_unless_row_wise(self.own)

    def known(self, variables: Variables) -> dict[int, Any]:
        return known_to_workers(variables)

    def rates(self) -> list[Any]:
        return rates_of(self.own)

    def whole(self, trainable: Sequence[Any]) -> list[Named] | None:
        return WholeOptimizer(self.own, trainable).variables()

    @property
    def number_of_loss_scale(self) -> int | None:
        return number_of_loss_scale(self.own)
