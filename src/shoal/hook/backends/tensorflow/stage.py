"""A stage on TensorFlow: one function forward, under a tape that keeps what the way back needs.

A function assigns in place here. So it reads what it may change first, and puts it back last: after a piece the model
is what it was. Functions are traced with an open batch dimension from the start, as the engine's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shoal.data.structure import flatten, rebuild
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.stages.engine import AbstractKerasStage
from shoal.hook.stages.stage_model import StageModel
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape


class _OnTape(NamedTuple):
    """Of a piece on its way."""

    tape: Any
    outputs: list[Any]  # with a gradient
    received: list[Any]  # the same
    states: list[Any]
    metrics: list[Any]


class TensorflowStage(AbstractKerasStage):
    """Keras on TensorFlow."""

    def __init__(self, stage_model: StageModel, engine: AbstractEngine, whole: PartShape) -> None:
        super().__init__(stage_model, engine, whole)
        self._flights: dict[int, _OnTape] = {}
        self._functions: dict[Any, Any] = {}  # by structure and shapes of a batch, but for its size

    def forward(self, piece: int, batch: Any, weight: float, received: Sequence[Array]) -> list[Array]:
        leaves, skeleton = flatten(batch)
        rows = [tf.convert_to_tensor(leaf) for leaf in leaves]
        arrived = [tf.convert_to_tensor(array) for array in received]
        places = [self._is_differentiable(place) for place in range(len(arrived))]
        floats = [tensor for tensor, counts in zip(arrived, places, strict=True) if counts]
        seeds = tf.convert_to_tensor(self._seeds_of(piece).reshape(-1, 2))
        function = self._function(skeleton, rows, arrived)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*floats, *(variable.value for variable in self.trainable)])
            sent, loss, states, metrics = function(rows, arrived, seeds, tf.constant(weight, tf.float32))
        if self.is_last:
            outputs = [loss]
        else:
            outputs = [
                value for value, (tensor, _) in zip(sent, self.stage.sends, strict=False) if self.is_float(tensor)
            ]
            outputs.append(sent[-1])
        self._flights[piece] = _OnTape(tape, outputs, floats, states, metrics)
        return [np.asarray(value) for value in sent]

    def metrics(self, piece: int) -> Sequence[Array]:
        values = self._flights[piece].metrics
        return [np.asarray(new) - fresh for new, fresh in zip(values, self._fresh, strict=True)]

    def backward(self, piece: int, gradients: Sequence[Array]) -> tuple[list[Array], Sequence[Array]]:
        kept = self._flights.pop(piece)
        wanted = [*(variable.value for variable in self.trainable), *kept.received]
        given = None if self.is_last else [tf.convert_to_tensor(gradient) for gradient in gradients]
        found = kept.tape.gradient(
            kept.outputs, wanted, output_gradients=given, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        count = len(self.trainable)
        mine = [_to_single(gradient) for gradient in found[:count]]
        back = [np.asarray(tf.convert_to_tensor(gradient)) for gradient in found[count:]]
        return back, [*mine, *(np.asarray(state) for state in kept.states)]

    def forget(self) -> None:
        self._flights.clear()

    def _is_differentiable(self, place: int) -> bool:
        return place == len(self.stage.receives) or self.is_float(self.stage.receives[place][0])

    def _function(self, skeleton: Any, rows: Sequence[Any], arrived: Sequence[Any]) -> Any:
        key = (repr(skeleton), *((t.dtype, tuple(t.shape[1:])) for t in (*rows, *arrived)))
        if key not in self._functions:

            def run(rows: Any, arrived: Any, seeds: Any, weight: Any) -> Any:
                return self._run(rebuild(skeleton, list(rows)), list(arrived), seeds, weight)

            signature = [
                [_open(tensor) for tensor in rows],
                [_open(tensor) for tensor in arrived[:-1]] + [tf.TensorSpec((), tf.float32)],
                tf.TensorSpec((None, 2), tf.int64),
                tf.TensorSpec((), tf.float32),
            ]
            eagerly = self._of.model.run_eagerly
            self._functions[key] = run if eagerly else tf.function(run, input_signature=signature, autograph=False)
        return self._functions[key]

    def _run(self, batch: Any, received: Any, seeds: Any, weight: Any) -> Any:
        """Traced. What is sent, the loss, new states, and metrics."""
        stage, held = self._of, self._of.variables
        metrics = self._engine.variables.metrics if stage.is_last else []
        before = [variable.value.read_value() for variable in self._changed]
        for place, variable in enumerate(held.seeds):
            variable.assign(tf.cast(seeds[place], variable.dtype))
        for variable, fresh in zip(metrics, self._fresh, strict=True):
            variable.assign(tf.constant(fresh))
        arrived = dict(zip((tensor for tensor, _ in self.stage.receives), received[:-1], strict=True))
        values = stage.inputs(keras.utils.unpack_x_y_sample_weight(batch)[0]) | arrived
        values = stage.outputs(values, keras.tree.flatten(stage.part(stage.arguments(values), training=True)))
        so_far = stage.add_up(received[-1], stage.own_losses(stage.part.losses))
        loss = stage.loss(values, so_far, batch, weight) if stage.is_last else tf.constant(0.0)
        states = [tf.identity(variable.value.read_value()) for variable in self._changed]
        found = [tf.identity(variable.value.read_value()) for variable in metrics]
        with tf.control_dependencies(states):
            for variable, value in zip(self._changed, before, strict=True):
                variable.value.assign(value)
        sent = [] if stage.is_last else [*(values[tensor] for tensor, _ in self.stage.sends), so_far]
        return sent, loss, states, found


def _open(tensor: Any) -> Any:
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)


def _to_single(gradient: Any) -> Array:
    """Embeddings' sparse gradients become dense; half precision is summed in float32."""
    dense = tf.convert_to_tensor(gradient)
    return np.asarray(tf.cast(dense, tf.float32) if dense.dtype in (tf.bfloat16, tf.float16) else dense)
