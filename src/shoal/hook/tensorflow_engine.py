"""The cut step on TensorFlow: one tf.function up to the gradients, one for the update.

A step assigns in place here. So a piece reads what it may change first, and puts it back last: after a piece the
model is what it was, and the piece's new values are outputs.

Functions are traced with an open batch dimension from the start. Tracing with a fixed size first and an open one
later, as tf.function does by itself, gives other constants to fold and so other bits, depending on which sizes a
worker happened to see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.data.structure import flatten, rebuild
from shoal.hook.assignments import assignments
from shoal.hook.cut import cut
from shoal.hook.engine import AbstractEngine, Logs, StepShape, aligned, extra_logs
from shoal.hook.seeds import Seeds
from shoal.strategies.schema import Array


class TensorflowEngine(AbstractEngine):
    """Keras on TensorFlow."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._eagerly = bool(model.run_eagerly)
        self._backward = _ByShape(self._train_step, self._function)
        self._test = _ByShape(self._test_step, self._function)
        self._update: Any = None
        self._results = self._function(self._metric_results)
        self._shape: StepShape | None = None
        self._names: dict[str, set[int]] = {}
        self._found: Any = None

    def read(self, variable: Any) -> Array:
        return _to_numpy(variable.value)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))

    def trace(self, batch: Any) -> StepShape:
        self._names = self.names_of_metrics()
        inputs = (batch, self.seeds.of_piece(0), *self._factors(1.0))
        if self._eagerly:  # nothing to trace: run the step once; it puts back what it changes
            gradients, _, _, extras = self._backward(*inputs)
        else:
            gradients, _, _, extras = self._backward.outputs(*inputs)
        present, changed, names, logs, weighted = self._found
        self._shape = StepShape(
            self.variables,
            [(i, gradient.dtype.name) for i, gradient in zip(present, gradients, strict=True)],
            changed,
            [(name, tuple(e.shape)) for name, e in zip(names, extras, strict=True)],
            logs,
            weighted,
        )
        return self._shape

    def piece(self, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        gradients, states, metrics, extras = self._backward(batch, self.seeds.of_piece(piece), *self._factors(weight))
        return [_to_numpy(output) for output in (*gradients, *states, *metrics, *extras)]

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        if self._update is None:
            self._update = self._function(self._apply)
        # A variable lies where the tensor lies that was assigned to it: states must not lie in totals, whose memory is
        # another training's after this one.
        self._update([_borrow(g) for g in gradients], [tf.constant(np.array(s)) for s in states])

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        metrics, logs = self._test(batch, seeds.of_piece(number))
        return [_to_numpy(value) for value in metrics], logs

    def results(self, metrics: Sequence[Array]) -> Logs:
        logs: Logs = self._results([tf.constant(value) for value in metrics])
        return logs

    def _function(self, function: Callable[..., Any], signature: Sequence[Any] | None = None) -> Any:
        if self._eagerly:
            return function
        return tf.function(
            function, input_signature=signature, jit_compile=self.model.jit_compile or None, autograph=False
        )

    def _factors(self, weight: float) -> list[Array]:
        """Of a piece's loss: its weight, and its scale where servers tell it."""
        return [np.asarray(factor, np.float32) for factor in (weight, self.loss_scale) if factor is not None]

    def _train_step(
        self, batch: Any, seeds: Any, weight: Any, scale: Any = None
    ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Traced: `train_step` up to the optimizer."""
        variables = self.variables
        before = [tf.identity(v.value) for v in variables.states]
        self._set_seeds(seeds)
        self.model.reset_metrics()
        with cut(self.model, weight, scale=scale) as opened, assignments(variables, opened) as assigned:
            logs = self.model.train_step(batch)
        changed = sorted(assigned.states)
        after = [tf.identity(variables.states[i].value) for i in changed]
        for i in changed:
            variables.states[i].assign(before[i])
        gradients = opened.gradients()
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        extras = extra_logs(logs, self._names, assigned.metrics)
        self._found = (present, changed, tuple(extras), tuple(logs), opened.weighted)
        values = [tf.convert_to_tensor(value) for value in extras.values()]
        return [_dense(gradients[i]) for i in present], after, self._metric_changes(), values

    def _metric_changes(self) -> list[Any]:
        return [
            tf.convert_to_tensor(v.value) - tf.constant(fresh)
            for v, fresh in zip(self.variables.metrics, self._fresh, strict=True)
        ]

    def _apply(self, gradients: Sequence[Any], states: Sequence[Any]) -> None:
        """Traced: the optimizer on the exchanged gradients, and the exchanged states in their own types."""
        assert self._shape is not None, "trace() first"
        shaped: list[Any] = [None] * len(self.variables.trainable)
        for i, gradient in zip(self._shape.gradients, gradients, strict=True):
            variable = self.variables.trainable[i]
            shaped[i] = tf.cast(tf.reshape(gradient, variable.shape), variable.dtype)
        self.model.optimizer.apply(shaped, self.variables.trainable)
        for i, state in zip(self._shape.changed, states, strict=True):
            variable = self.variables.states[i]
            variable.assign(tf.cast(tf.reshape(state, variable.shape), variable.dtype))

    def _set_seeds(self, seeds: Any) -> None:
        for i, variable in enumerate(self.variables.seeds):
            variable.assign(tf.cast(seeds[i], variable.dtype))

    def _test_step(self, batch: Any, seeds: Any) -> tuple[list[Any], Any]:
        self._set_seeds(seeds)
        self.model.reset_metrics()
        logs = self.model.test_step(batch)
        return self._metric_changes(), logs

    def _metric_results(self, metrics: Sequence[Any]) -> Any:
        for variable, value in zip(self.variables.metrics, metrics, strict=True):
            variable.assign(value)
        return self.model.get_metrics_result()


class _ByShape:
    """A function per kind of batch: the same structure, dtypes and shapes but for the batch's size."""

    def __init__(self, function: Callable[..., Any], compile_: Callable[..., Any]) -> None:
        self._function = function
        self._compile = compile_
        self._compiled: dict[Any, Any] = {}

    def __call__(self, batch: Any, *rest: Array) -> Any:
        function, tensors = self._prepare(batch, rest)
        return function(*tensors)

    def outputs(self, batch: Any, *rest: Array) -> Any:
        """What it would give, without running it."""
        function, tensors = self._prepare(batch, rest)
        return function.get_concrete_function(*tensors).structured_outputs

    def _prepare(self, batch: Any, rest: Sequence[Array]) -> tuple[Any, list[Any]]:
        leaves, skeleton = flatten(batch)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
        key = (str(skeleton), tuple((t.dtype, tuple(t.shape[1:])) for t in tensors), len(rest))
        if key not in self._compiled:

            def flat(*inputs: Any) -> Any:
                return self._function(rebuild(skeleton, inputs[: len(leaves)]), *inputs[len(leaves) :])

            signature = [tf.TensorSpec((None, *t.shape[1:]), t.dtype) for t in tensors]
            signature += [tf.TensorSpec(r.shape, r.dtype) for r in rest]
            self._compiled[key] = self._compile(flat, signature)
        return self._compiled[key], [*tensors, *(tf.convert_to_tensor(r) for r in rest)]


def _to_numpy(tensor: Any) -> Array:
    """Where it lies; a scalar as an array without axes."""
    return np.asarray(tensor.numpy())


def _borrow(view: Array) -> Any:
    """A tensor that lies where the view lies; a copy where TensorFlow could not read it in place."""
    return tf.experimental.dlpack.from_dlpack(view.__dlpack__()) if aligned(view) else tf.constant(view)


def _dense(gradient: Any) -> Any:
    """Embeddings' sparse gradients become dense; half precision is summed in float32."""
    dense = tf.convert_to_tensor(gradient)
    return tf.cast(dense, tf.float32) if dense.dtype in (tf.bfloat16, tf.float16) else dense
