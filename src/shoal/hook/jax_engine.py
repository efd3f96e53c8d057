"""The cut step on JAX: two compiled programs, backward and update, with the exchange between them on the host.

The backward program donates nothing: a redo needs its inputs. The update program donates weights and optimizer
state: by then the step is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.hook.cut import cut
from shoal.hook.engine import AbstractEngine, Logs, StepShape, aligned
from shoal.strategies.schema import Array


class JaxEngine(AbstractEngine):
    """Keras on JAX."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        compiled = model.jit_compile and not model.run_eagerly
        jit = jax.jit if compiled else _as_is
        self._fresh_values = [jnp.asarray(value) for value in self._fresh]
        self._backward = jit(self._train_step)
        self._test = jit(self._test_step)
        self._update = jax.jit(self._apply, donate_argnums=(0, 1)) if compiled else self._apply
        self._results = jit(self._metric_results)
        self._log_names: tuple[str, ...] = ()
        self._weighted = False
        self._shape: StepShape | None = None
        self._borrowed: dict[int, list[jax.Array]] = {}

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))

    def trace(self, batch: Any) -> StepShape:
        traced = jax.make_jaxpr(self._train_step, return_shape=True)(*self._step_inputs(batch, 0, 1.0))
        jaxpr, (gradients, states, _, extras) = traced[0].jaxpr, traced[1]
        # A state that comes out as it went in (a frozen weight) is not exchanged: its mean over pieces would
        # cost an exchange and might round.
        outputs = jaxpr.outvars[len(gradients) : len(gradients) + len(states)]
        inputs = {id(variable) for variable in jaxpr.invars}
        changed = [i for i, output in enumerate(outputs) if id(output) not in inputs]
        self._shape = StepShape(
            self.variables,
            [(i, str(g.dtype)) for i, g in enumerate(gradients)],
            changed,
            [(name, str(extras[name].dtype), tuple(extras[name].shape)) for name in extras],
            self._log_names,
            self._weighted,
        )
        return self._shape

    def piece(self, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        assert self._shape is not None, "trace() first"
        gradients, states, metrics, extras = self._backward(*self._step_inputs(batch, piece, weight))
        outputs = [
            *gradients,
            *(states[i] for i in self._shape.changed),
            *metrics,
            *(extras[k] for k in self._shape.extras),
        ]
        return [np.asarray(output) for output in outputs]

    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        variables = self.variables
        assert self._shape is not None, "trace() first"
        changed = [variables.states[i] for i in self._shape.changed]
        trainable, optimizer, new_states = self._update(
            [v.value for v in variables.trainable],
            [v.value for v in variables.optimizer],
            self._borrow([*gradients, *states]),
        )
        _set(variables.trainable, trainable)
        _set(variables.optimizer, optimizer)
        _set(changed, new_states)

    def settle(self) -> None:
        if self.variables.trainable:
            jax.block_until_ready(self.variables.trainable[0].value)

    def test(self, batch: Any) -> tuple[Sequence[Array], Logs]:
        variables = self.variables
        metrics, logs = self._test(
            [v.value for v in variables.trainable],
            [v.value for v in self.model.non_trainable_variables],
            self._fresh_values,
            batch,
        )
        return [np.asarray(value) for value in metrics], logs

    def results(self, metrics: Sequence[Array]) -> Logs:
        logs: Logs
        logs, values = self._results(list(metrics))
        _set(self.variables.metrics, values)
        return logs

    def _step_inputs(self, batch: Any, piece: int, weight: float) -> tuple[Any, ...]:
        variables = self.variables
        return (
            [v.value for v in variables.trainable],
            [v.value for v in variables.states],
            [v.value for v in variables.optimizer],
            self._fresh_values,
            self.seeds.of_piece(piece).astype(np.uint32),
            np.float32(weight),
            batch,
        )

    def _train_step(
        self, trainable: Any, states: Any, optimizer: Any, metrics: Any, seeds: Any, weight: Any, batch: Any
    ) -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
        """Traced: `train_step` up to the optimizer."""
        non_trainable = self._with_seeds(states, seeds)
        with cut(self.model, weight) as opened:
            logs, after = self.model.train_step((trainable, non_trainable, optimizer, metrics), batch)
        named = {id(v): value for v, value in zip(self.model.non_trainable_variables, after[1], strict=True)}
        self._log_names = tuple(logs)
        self._weighted = opened.weighted
        names = self._metric_names(metrics)
        return (
            [_to_single(gradient) for gradient in opened.gradients()],
            [named[id(v)] for v in self.variables.states],
            [new - old for new, old in zip(after[3], metrics, strict=True)],
            {name: jnp.asarray(value) for name, value in logs.items() if name not in names},
        )

    def _with_seeds(self, states: Any, seeds: Any) -> list[Any]:
        given = {id(v): value for v, value in zip(self.variables.states, states, strict=True)}
        given |= {id(v): seeds[i].astype(v.dtype) for i, v in enumerate(self.variables.seeds)}
        return [given[id(v)] for v in self.model.non_trainable_variables]

    def _metric_names(self, metrics: Any) -> set[str]:
        return set(jax.eval_shape(self._metric_results, metrics)[0])

    def _apply(self, trainable: Any, optimizer: Any, totals: Any) -> tuple[Any, Any, Any]:
        """Traced: the optimizer on the exchanged gradients, and the exchanged states in their own types."""
        assert self._shape is not None, "trace() first"
        count = len(self._shape.gradients)
        gradients = [
            total.reshape(variable.shape).astype(variable.dtype)
            for total, variable in zip(totals[:count], trainable, strict=True)
        ]
        trainable, optimizer = self.model.optimizer.stateless_apply(optimizer, gradients, trainable)
        changed = (self.variables.states[i] for i in self._shape.changed)
        states = [
            jnp.array(total.reshape(variable.shape), variable.dtype, copy=True)
            for total, variable in zip(totals[count:], changed, strict=True)
        ]
        return trainable, optimizer, states

    def _test_step(self, trainable: Any, non_trainable: Any, metrics: Any, batch: Any) -> tuple[Any, Any]:
        logs, state = self.model.test_step((trainable, non_trainable, metrics), batch)
        return [new - old for new, old in zip(state[-1], metrics, strict=True)], logs

    def _metric_results(self, metrics: Any) -> tuple[Any, Any]:
        """Traced: results, and the values themselves as JAX arrays: cheaper here than one by one."""
        values = [jnp.asarray(value) for value in metrics]
        mapping = list(zip(self.variables.metrics, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return self.model.get_metrics_result(), values

    def _borrow(self, views: Sequence[Array]) -> list[jax.Array]:
        """Arrays that lie where the views lie. Making one takes longer than reading most, so they are kept.

        Their contents change with every exchange, which JAX does not expect: only the update program reads
        them, and `settle` waits for it.
        """
        if not views:
            return []
        key = views[0].ctypes.data
        if key not in self._borrowed:
            self._borrowed[key] = [jnp.from_dlpack(v) if aligned(v) else v for v in views]
        return [
            kept if isinstance(kept, jax.Array) else jnp.array(view)
            for kept, view in zip(self._borrowed[key], views, strict=True)
        ]


def _as_is(function: Any) -> Any:
    """Instead of `jax.jit`, under `run_eagerly`."""
    return function


def _to_single(gradient: Any) -> Any:
    """Half-precision gradients are summed in float32."""
    return gradient.astype(jnp.float32) if gradient.dtype in (jnp.bfloat16, jnp.float16) else gradient


def _set(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Without `assign`, whose checks and conversions cost tens of microseconds per variable and step."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value
