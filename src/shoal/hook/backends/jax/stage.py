"""A stage on JAX: one compiled program forward, one backward. Between them lie the residuals, as JAX's `vjp` keeps
them: nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.jax.cut import to_single
from shoal.hook.stages.engine import AbstractKerasStage
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape


class JaxStage(AbstractKerasStage):
    """Keras on JAX."""

    def __init__(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> None:
        super().__init__(stage_model, engine, whole)
        compiled = bool(stage_model.model.jit_compile and not stage_model.model.run_eagerly)
        self._forward: Any = jax.jit(self._run) if compiled else self._run
        self._back: Any = jax.jit(_pull_back) if compiled else _pull_back
        self._flights: dict[int, tuple[Any, list[Any], list[Any]]] = {}  # vjp, new states, metrics

    def forward(self, piece: int, batch: Any, weight: float, received: Sequence[Array]) -> list[Array]:
        held = self._of.variables
        outputs, (constant, states, metrics), vjp = self._forward(
            [v.value for v in held.trainable],
            [v.value for v in held.states],
            self._seeds_of(piece).astype(np.uint32),
            list(received),
            batch,
            np.float32(weight),
        )
        self._flights[piece] = (vjp, states, metrics)
        if self.is_last:
            jax.block_until_ready(outputs)
            return []
        floats, others = iter(outputs[:-1]), iter(constant)
        sent = [next(floats) if self.is_float(tensor) else next(others) for tensor, _ in self.stage.sends]
        return [np.asarray(value) for value in (*sent, outputs[-1])]

    def kept(self, piece: int, rows: int) -> int:
        weights = {id(v.value) for v in self.variables}
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._flights[piece][0]) if id(leaf) not in weights)

    def metrics(self, piece: int) -> Sequence[Array]:
        values = self._flights[piece][2]
        return [np.asarray(new) - old for new, old in zip(values, self._fresh, strict=True)]

    def backward(self, piece: int, gradients: Sequence[Array]) -> tuple[list[Array], Sequence[Array]]:
        vjp, states, _ = self._flights.pop(piece)
        seeds = [np.float32(1.0)] if self.is_last else list(gradients)
        weights, back = self._back(vjp, seeds)
        found = {id(v): value for v, value in zip(self._of.variables.trainable, weights, strict=True)}
        mine = [np.asarray(found[id(variable)]) for variable in self.trainable]
        return [np.asarray(value) for value in back], [*mine, *(np.asarray(state) for state in states)]

    def forget(self) -> None:
        self._flights.clear()

    def _run(self, trainable: Any, states: Any, seeds: Any, received: Any, batch: Any, weight: Any) -> Any:
        """Traced. Outputs with a gradient; outputs without, new states and metrics; and the way back."""
        stage, held = self._of, self._of.variables
        listed = dict(zip((tensor for tensor, _ in self.stage.receives), received[:-1], strict=True))
        constants = {tensor: value for tensor, value in listed.items() if not self.is_float(tensor)}
        x = keras.utils.unpack_x_y_sample_weight(batch)[0]

        def function(trainable: Any, floats: Any) -> Any:
            values = stage.inputs(x) | constants | dict(zip(self._differentiable, floats[:-1], strict=True))
            state = {id(v): value for v, value in zip(held.trainable, trainable, strict=True)}
            state |= {id(v): value for v, value in zip(held.states, states, strict=True)}
            state |= {id(v): seeds[i].astype(v.dtype) for i, v in enumerate(held.seeds)}
            part = stage.part
            computed, after, losses = part.stateless_call(
                [state[id(v)] for v in part.trainable_variables],
                [state[id(v)] for v in part.non_trainable_variables],
                stage.arguments(values),
                training=True,
                return_losses=True,
            )
            new = {id(v): value for v, value in zip(part.non_trainable_variables, after, strict=True)}
            changed = [new[id(v)] for v in self._changed]
            values = stage.outputs(values, keras.tree.flatten(computed))
            so_far = stage.add_up(floats[-1], stage.own_losses(losses))
            if stage.is_last:
                loss, metrics = self._loss(values, so_far, batch, weight)
                return [loss], ([], changed, metrics)
            sent = [(values[tensor], self.is_float(tensor)) for tensor, _ in self.stage.sends]
            floats_out = [value for value, is_float in sent if is_float]
            return [*floats_out, so_far], ([value for value, is_float in sent if not is_float], changed, [])

        floats = [listed[tensor] for tensor in self._differentiable]
        outputs, vjp, others = jax.vjp(function, trainable, [*floats, jnp.float32(received[-1])], has_aux=True)
        return outputs, others, vjp

    def _loss(self, values: Any, so_far: Any, batch: Any, weight: Any) -> tuple[Any, list[Any]]:
        variables = self._engine.variables.metrics
        mapping = [(v, jnp.asarray(fresh)) for v, fresh in zip(variables, self._fresh, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            loss = self._of.loss(values, so_far, batch, weight)
        return loss, [scope.get_current_value(variable) for variable in variables]


def _pull_back(vjp: Any, gradients: Any) -> tuple[list[Any], list[Any]]:
    """Traced. Gradients of weights, as they are summed up, and of what was received."""
    weights, received = vjp(gradients)
    return [to_single(gradient) for gradient in weights], received
