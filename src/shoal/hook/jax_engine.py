"""The cut step on JAX: two compiled programs, backward and update, with the exchange between them on the host.

The backward program donates nothing: a redo needs its inputs. The update program donates weights and optimizer
state: by then the step is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.hook.cut import Cut, cut
from shoal.hook.engine import AbstractEngine, Logs, StepShape, aligned, extra_logs
from shoal.hook.seeds import Seeds
from shoal.strategies.schema import Array


class JaxEngine(AbstractEngine):
    """Keras on JAX."""

    dirties_seeds = False  # a traced step assigns nothing
    pieces_last = True  # JAX's arrays never change

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
        self._extras: tuple[str, ...] = ()
        self._weighted = False
        self._shape: StepShape | None = None
        self._borrowed: dict[int, list[Any]] = {}
        self._on_host = jax.default_backend() == "cpu"  # elsewhere totals are copied to the device

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._tie([*self.variables.trainable, *self.variables.states, *self.variables.optimizer])

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))
        self._tie(variables)

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        typed = [np.asarray(value, v.value.dtype) for v, value in zip(variables, values, strict=True)]
        _set(variables, jax.device_put(typed, jax.devices()[0]))

    def trace(self, batch: Any) -> StepShape:
        names = self.names_of_metrics()
        traced = jax.make_jaxpr(self._whole_step, return_shape=True)(*self._step_inputs(batch, 0, 1.0))
        jaxpr, (gradients, states, metrics, logs) = traced[0].jaxpr, traced[1]
        # A state that comes out as it went in (a frozen weight) is not exchanged: its mean over pieces would
        # cost an exchange and might round.
        inputs = {id(variable) for variable in jaxpr.invars}
        late = _made_of_marked(jaxpr)
        if any(id(output) in late for output in jaxpr.outvars[len(gradients) :][: len(states) + len(metrics)]):
            Cut(self.model).refuse_late_work("uses its weights after it gave their gradients to the optimizer")
        changed = [id(output) not in inputs for output in jaxpr.outvars[len(gradients) :]]
        extras = extra_logs(logs, names, {i for i in range(len(metrics)) if changed[len(states) + i]})
        self._extras = tuple(extras)
        self._shape = StepShape(
            self.variables,
            [(i, str(g.dtype)) for i, g in enumerate(gradients)],
            [i for i in range(len(states)) if changed[i]],
            [(name, tuple(extras[name].shape)) for name in extras],
            self._log_names,
            self._weighted,
        )
        return self._shape

    def piece(self, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        assert self._shape is not None, "trace() first"
        gradients, states, values, extras = self._backward(*self._step_inputs(batch, piece, weight))
        metrics = [np.asarray(new) - old for new, old in zip(values, self._fresh, strict=True)]
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

    def rehearse(self, batch: Any, applies: bool = True) -> None:
        super().rehearse(batch)
        if not applies:
            return
        assert self._shape is not None, "trace() first"
        device = jax.devices()[0]
        variables = self.variables
        changed = (variables.states[i] for i in self._shape.changed)
        totals = [jnp.zeros(v.value.size, _to_single(v.value).dtype) for v in (*variables.trainable, *changed)]
        # Copies: the update uses its inputs up.
        given = ([jnp.array(v.value, copy=True) for v in kind] for kind in (variables.trainable, variables.optimizer))
        self._update(*jax.device_put([*given, totals], device))

    def settle(self) -> None:
        if self.variables.trainable:
            jax.block_until_ready(self.variables.trainable[0].value)

    def release(self) -> None:
        self.settle()
        self._borrowed.clear()

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        variables = self.variables
        values, logs = self._test(
            [v.value for v in variables.trainable],
            [v.value for v in variables.states],
            self._fresh_values,
            seeds.of_piece(number).astype(np.uint32),
            batch,
        )
        return [np.asarray(new) - old for new, old in zip(values, self._fresh, strict=True)], logs

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
            None if self.loss_scale is None else np.float32(self.loss_scale),
            batch,
        )

    def _train_step(self, *inputs: Any) -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
        """Traced: what a piece gives out. Logs that are metrics' results are left to `results`."""
        _, gradients, states, metrics, logs = self._cut_step(_as_is, *inputs)
        return gradients, states, metrics, {name: logs[name] for name in self._extras}

    def _whole_step(self, *inputs: Any) -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
        """Traced to find out what the step does; never run."""
        opened, gradients, states, metrics, logs = self._cut_step(jax.lax.optimization_barrier, *inputs)
        self._log_names = tuple(logs)
        self._weighted = opened.weighted
        return gradients, states, metrics, logs

    def _cut_step(
        self,
        mark: Callable[[Any], Any],
        trainable: Any,
        states: Any,
        optimizer: Any,
        metrics: Any,
        seeds: Any,
        weight: Any,
        scale: Any,
        batch: Any,
    ) -> tuple[Cut, list[Any], list[Any], list[Any], dict[str, Any]]:
        """`train_step` up to the optimizer."""
        non_trainable = self._with_seeds(states, seeds)
        with cut(self.model, weight, mark, scale) as opened:
            logs, after = self.model.train_step((trainable, non_trainable, optimizer, metrics), batch)
        gradients = [_to_single(gradient) for gradient in opened.gradients()]
        if any(new is not old for new, old in zip(after[0], opened.given_back, strict=True)):
            opened.refuse_late_work("changes its weights itself")
        named = {id(v): value for v, value in zip(self.model.non_trainable_variables, after[1], strict=True)}
        logs = {name: jnp.asarray(value) for name, value in logs.items()}
        return opened, gradients, [named[id(v)] for v in self.variables.states], list(after[3]), logs

    def _with_seeds(self, states: Any, seeds: Any) -> list[Any]:
        given = {id(v): value for v, value in zip(self.variables.states, states, strict=True)}
        given |= {id(v): seeds[i].astype(v.dtype) for i, v in enumerate(self.variables.seeds)}
        return [given[id(v)] for v in self.model.non_trainable_variables]

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

    def _test_step(self, trainable: Any, states: Any, metrics: Any, seeds: Any, batch: Any) -> tuple[Any, Any]:
        logs, state = self.model.test_step((trainable, self._with_seeds(states, seeds), metrics), batch)
        return state[-1], logs

    def _metric_results(self, metrics: Any) -> tuple[Any, Any]:
        """Traced: results, and the values themselves as JAX arrays: cheaper here than one by one."""
        values = [jnp.asarray(value) for value in metrics]
        mapping = list(zip(self.variables.metrics, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return self.model.get_metrics_result(), values

    def _tie(self, variables: Sequence[Any]) -> None:
        """To the device. Totals that are borrowed are, and so is what the update makes of them. Programs are compiled
        anew for inputs of another kind: weights that are tied from the start spare the second compilation.
        """
        if self._on_host:
            device = jax.devices()[0]
            for variable in variables:
                variable._value = jax.device_put(variable.value, device)

    def _borrow(self, views: Sequence[Array]) -> list[jax.Array]:
        """Arrays that lie where the views lie. Making one takes longer than reading most, so they are kept.

        Their contents change with every exchange, which JAX does not expect: only the update program reads
        them, and `settle` waits for it.
        """
        if not views:
            return []
        key = views[0].ctypes.data
        if key not in self._borrowed:
            self._borrowed[key] = [jnp.from_dlpack(v) if self._on_host and aligned(v) else v for v in views]
        return [
            kept if isinstance(kept, jax.Array) else jnp.array(view)
            for kept, view in zip(self._borrowed[key], views, strict=True)
        ]


def _as_is(value: Any) -> Any:
    """Instead of `jax.jit`, under `run_eagerly`, and of a mark."""
    return value


def _made_of_marked(jaxpr: Any) -> set[int]:
    """The ids of all values of a traced step that depend on what its optimizer gave back."""
    found: set[int] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "optimization_barrier" or any(id(v) in found for v in equation.invars):
            found |= {id(v) for v in equation.outvars}
    return found


def _to_single(gradient: Any) -> Any:
    """Half-precision gradients are summed in float32."""
    return gradient.astype(jnp.float32) if gradient.dtype in (jnp.bfloat16, jnp.float16) else gradient


def _set(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Without `assign`, whose checks and conversions cost tens of microseconds per variable and step."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value
