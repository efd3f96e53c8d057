"""The cut step on JAX: compiled programs for its parts and for its updates, with the exchange between them on the host.

A part's program donates nothing: a redo needs its inputs. The update of a step with one part donates weights and
optimizer state: by then the step is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from shoal.errors import CannotDistribute
from shoal.hook.backends.base import AbstractEngine, updated_by
from shoal.hook.backends.cut import Weighting, cut, refuse, step_of
from shoal.hook.backends.jax.cut import Leaf, Programs, Take, Traced, is_derived, to_single, trace
from shoal.hook.backends.jax.placement import placement_of
from shoal.hook.keras_private import set_values
from shoal.hook.mesh.process_group import GroupProgram, ProcessGroup
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, StepShape, checksum
from shoal.training.logs import Logs, MetricResult, flat
from shoal.training.seeds import Seeds


class JaxEngine(AbstractEngine):
    """Keras on JAX."""

    dirties_seeds = False  # a traced step assigns nothing
    pieces_last = True  # JAX's arrays never change

    def __init__(self, model: Any, group: ProcessGroup | None = None) -> None:
        """`group`: processes whose devices compute pieces and tests together."""
        super().__init__(model)
        self._placement = placement_of(self.variables.weights, in_group=group is not None)
        self._compiled = bool(model.jit_compile and not model.run_eagerly)
        jit: Any = jax.jit if self._compiled else _as_is
        self._fresh_values = [jnp.asarray(value) for value in self._fresh]
        self._group = group
        if group is not None and not self._compiled:
            raise CannotDistribute(
                "a worker of several processes (--mesh-hosts) computes compiled steps only: this model was compiled "
                "with run_eagerly=True or jit_compile=False."
            )
        self._test = jit(self._test_step) if group is None else GroupProgram(group, self._test_step, lambda *a: a[3])
        self._results = jax.jit(self._metric_results, static_argnums=1) if self._compiled else self._metric_results
        self._weighted = False
        self._shape: StepShape | None = None
        self._programs: Programs | None = None
        self._parts: list[Any] = []
        self._updates: list[Any] = []
        self._computed: list[Any] = []
        self._example: Any = None
        self._given: list[list[Any]] = []  # what the applies of this step have given so far
        self._exchanged: dict[int, Any] = {}  # new leaves of this step that were exchanged

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._given, self._exchanged = [], {}
        self._placement.tie([*self.variables.trainable, *self.variables.states, *self.variables.optimizer])

    @property
    def shape(self) -> StepShape | None:
        return self._shape

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value)

    def token(self, variable: Any) -> Any:
        return variable.value  # JAX's arrays never change

    def differs(self, variable: Any, token: Any) -> bool:
        return variable.value is not token and checksum(self.read(variable)) != checksum(np.asarray(token))

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))
        self._placement.tie(variables)

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        typed = [np.asarray(value, v.value.dtype) for v, value in zip(variables, values, strict=True)]
        set_values(variables, self._placement.put(variables, typed))

    def trace(self, batch: Any) -> StepShape:
        self._example = batch
        traced = self._trace(batch)
        optimizers = [self.model.optimizer, *(apply.optimizer for apply in traced.applies)]
        before = self.variables
        self.know_optimizers([one for one in optimizers if one is not None])
        if not self.variables.same(before):  # an optimizer updates what was taken for a state
            traced = self._trace(batch)
        shape = self._shape_of(traced)
        self._programs = programs = Programs(self._step_on_whole, traced, self._compiled)
        offset = len(self.variables.weights) + len(self.variables.optimizer)
        self._parts = [
            programs.part(
                number,
                [*part.changed, *(offset + i for i in part.metrics)],
                part.extras,
                self._placement.shardings([self.variables.weights[i] for i in part.gradients]),
            )
            for number, part in enumerate(shape.parts)
        ]
        if self._group is not None:
            self._parts = [GroupProgram(self._group, part.__wrapped__, lambda *a: a[2][0]) for part in self._parts]
        self._computed = [programs.computed(number) for number in range(len(traced.applies) + 1)]
        # A step that goes on after its update needs what the update was given.
        donates = len(shape.parts) == 1 and not any(self._computed)
        self._updates = [self._update_of(shape, number, donates) for number in range(len(shape.parts))]
        self._shape = shape
        self.adds = [value.adds for value in traced.leaves]
        return shape

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        assert self._shape is not None, "trace() first"
        shape = self._shape.parts[part]
        if part == 0:
            self._given, self._exchanged = [], {}
        gradients, leaves, extras = self._parts[part](self._leaves(), self._given, self._inputs(batch, piece, weight))
        found = self._placement.to_host([*gradients, *leaves, *extras])
        first = len(gradients) + len(shape.changed)
        for place, metric in enumerate(shape.metrics, first):
            found[place] = np.asarray(found[place] - self._fresh[metric])
        return found

    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        assert self._shape is not None, "trace() first"
        assert self._programs is not None
        if part == 0:
            self._given, self._exchanged = [], {}
        programs, leaves = self._programs, self._leaves()
        shape = self._shape.parts[part]
        exchanged_for = [self.variables.weights[i] for i in (*shape.gradients, *shape.changed)]
        totals = self._placement.totals([*gradients, *states], exchanged_for)
        applies = len(programs.traced.applies)
        given = programs.resolve(part, leaves, self._given, self._compute(part)) if part < applies else []
        results, exchanged = self._updates[part](given, totals)
        if part < applies:
            self._given.append(results)
        self._exchanged |= zip(self._shape.parts[part].changed, exchanged, strict=True)
        if part == len(self._shape.parts) - 1:
            self._finish(leaves)

    def _finish(self, leaves: list[Any]) -> None:
        """All parts are applied: the variables get their new values."""
        assert self._programs is not None
        applies = len(self._programs.traced.applies)
        new = self._programs.resolve(applies, leaves, self._given, self._compute(applies))
        variables = [*self.variables.weights, *self.variables.optimizer]
        changed, values = [], []
        for place, variable in enumerate(variables):
            value = self._exchanged.get(place, new[place])
            if value is not leaves[place] and value is not None:
                changed.append(variable)
                values.append(value)
        set_values(changed, values)
        if any(self._computed):  # by a program that does not know where they belong
            self._placement.tie(changed)
        self._given, self._exchanged = [], {}

    def _compute(self, number: int) -> list[Any]:
        program = self._computed[number]
        if program is None:
            return []
        found: list[Any] = program(self._leaves(), self._given, self._inputs(self._example, 0, 1.0))
        return found

    def rehearse(self, batch: Any, applies: bool = True) -> None:
        """On copies: an update may use its inputs up."""
        super().rehearse(batch)
        if not applies:
            return
        assert self._shape is not None, "trace() first"
        assert self._programs is not None
        leaves = self._leaves()
        given: list[list[Any]] = []
        for number, part in enumerate(self._shape.parts):
            self._parts[number](leaves, given, self._inputs(batch, 0, 1.0))
            if self._computed[number : number + 1] and number < len(self._programs.traced.applies):
                program = self._computed[number]
                found = program(leaves, given, self._inputs(self._example, 0, 1.0)) if program is not None else []
                inputs = self._programs.resolve(number, leaves, given, found)
            else:
                inputs = []
            shapes = [self.variables.weights[i] for i in (*part.gradients, *part.changed)]
            zeros = [np.zeros(int(np.prod(v.shape)), to_single(v.value).dtype) for v in shapes]
            results, _ = self._updates[number](*self._placement.rehearsal(inputs, zeros, shapes))
            given.append(results)

    def settle(self) -> None:
        if self._given:
            jax.block_until_ready(self._given[-1])
        elif self.variables.trainable:
            jax.block_until_ready(self.variables.trainable[0].value)

    def release(self) -> None:
        self.settle()
        self._placement.release()

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        variables = self.variables
        values, logs = self._test(
            [v.value for v in variables.weights],
            self._fresh_values,
            seeds.of_piece(number).astype(np.uint32),
            self._placement.batch(batch),
        )
        return [np.asarray(new) - old for new, old in zip(values, self._fresh, strict=True)], logs

    def results(self, metrics: Sequence[Array], logs: Sequence[tuple[str, MetricResult]]) -> Logs:
        found: Logs
        found, values = self._results(list(metrics), tuple(logs))
        set_values(self.variables.metrics, self._placement.metrics(values))
        return found

    # The step ---------------------------------------------------------------------------------------

    def _leaves(self) -> list[Any]:
        """All that the step is a function of, but for its inputs: weights, optimizers' state, fresh metrics."""
        variables = self.variables
        return [*(v.value for v in variables.weights), *(v.value for v in variables.optimizer), *self._fresh_values]

    def _inputs(self, batch: Any, piece: int, weight: float) -> tuple[Any, ...]:
        scale = None if self.loss_scale is None else np.float32(self.loss_scale)
        batch = self._placement.batch(batch)
        return (batch, self.seeds.of_piece(piece).astype(np.uint32), np.float32(weight), scale)

    def _step(self, take: Take, leaves: Sequence[Any], inputs: Any) -> tuple[Logs, list[Any]]:
        """Traced: `train_step`, with somebody who takes its applies."""
        batch, seeds, weight, scale = inputs
        model = self.model
        if self._compiled:
            self.count_compilation(batch)
        state = self._by_variable(leaves, seeds)
        kinds = (
            model.trainable_variables,
            model.non_trainable_variables,
            self._own_optimizer(),
            model.metrics_variables,
        )
        weighting = Weighting(weight, scale)
        with cut(model, take, weighting, self.builds_optimizers), self.train_logs.watched():
            logs, after = step_of(model)(tuple([state[id(v)] for v in kind] for kind in kinds), batch)
            logs = flat(logs)
            self.train_logs.note(logs)
        self._weighted = weighting.done
        for kind, values in zip(kinds, after, strict=True):
            state |= {id(v): value for v, value in zip(kind, values, strict=True)}
        variables = self.variables
        return logs, [state[id(v)] for v in (*variables.weights, *variables.optimizer, *variables.metrics)]

    def _step_on_whole(self, take: Take, leaves: Sequence[Any], inputs: Any) -> tuple[Logs, list[Any]]:
        """Traced: the same, on weights that may be kept in parts."""
        weights = self.variables.weights
        whole = self._placement.whole(leaves[: len(weights)], weights)
        return self._step(take, [*whole, *leaves[len(weights) :]], inputs)

    def _own_optimizer(self) -> list[Any]:
        return list(self.model.optimizer.variables) if self.model.optimizer is not None else []

    def _by_variable(self, leaves: Sequence[Any], seeds: Any) -> dict[int, Any]:
        variables = self.variables
        every = (*variables.weights, *variables.optimizer, *variables.metrics)
        state = {id(v): value for v, value in zip(every, leaves, strict=True)}
        return state | {id(v): seeds[i].astype(v.dtype) for i, v in enumerate(variables.seeds)}

    def _trace(self, batch: Any) -> Traced:
        inputs = self._inputs(batch, 0, 1.0)
        flat_inputs = [jax.tree.map(lambda _, odd=odd: odd, one) for one, odd in zip(inputs, (1, 1, 1, 0), strict=True)]
        try:
            return trace(self._step, self._leaves(), inputs, jax.tree.leaves(flat_inputs))
        except (jax.errors.UnexpectedTracerError, CannotDistribute) as error:
            raise refuse(
                self.model,
                f"can't be taken apart where it applies its optimizer ({str(error).splitlines()[0]}). Apply it in "
                "`train_step` itself, not within jax.jit, jax.lax.scan or jax.lax.cond: Keras compiles the whole step.",
            ) from error

    def _shape_of(self, traced: Traced) -> StepShape:
        variables = self.variables
        weights, others = len(variables.weights), len(variables.weights) + len(variables.optimizer)
        for apply in traced.applies:
            if any(value.source is None and not is_derived(value) for value in (*apply.variables, *apply.state)):
                raise refuse(self.model, f"changes weights by itself, from the batch, before {apply.optimizer.name!r}.")
        if any(value.source is None and not is_derived(value) for value in traced.leaves[weights:others]):
            raise refuse(self.model, "changes its optimizer's variables by itself.")
        changed = [i for i, v in enumerate(traced.leaves[:weights]) if v.source is None and not is_derived(v)]
        updated = {i for i, value in enumerate(traced.leaves[others:]) if value.source is None}
        of_metrics = self.know_logs(updated)
        extras = {name: value for name, value in traced.logs.items() if name not in of_metrics}
        last = max((0, *(traced.leaves[i].part for i in changed), *(value.part for value in extras.values())))
        last = max((last, *(value.part for value in traced.leaves[others:])))
        count = max(1, len(traced.applies), last + 1)
        parts = []
        for number in range(count):
            gradients = []
            if number < len(traced.applies):
                apply = traced.applies[number]
                own = self._weights_of(traced, number)
                gradients = [(i, value.dtype) for i, value in zip(own, apply.gradients, strict=True)]
            parts.append(
                PartShape(
                    variables,
                    gradients,
                    [i for i in changed if traced.leaves[i].part == number],
                    [i for i, value in enumerate(traced.leaves[others:]) if value.part == number],
                    [(name, value.shape) for name, value in extras.items() if value.part == number],
                    self._weighted,
                    self.train_logs.averaged(),
                )
            )
        exchanged = {*changed, *(i for part in parts for i in part.gradients)}
        renewed = (i for i, value in enumerate(traced.leaves[:weights]) if value.source != Leaf(i))
        return StepShape(tuple(parts), tuple(traced.logs), tuple(i for i in renewed if i not in exchanged))

    def _weights_of(self, traced: Traced, number: int) -> list[int]:
        """Which weights an apply updates: those that its values come from, or, where the step has changed them, those
        that the optimizer was built on.
        """
        apply, weights = traced.applies[number], self.variables.weights
        index = {id(variable): i for i, variable in enumerate(weights)}
        found = [traced.root(value) for value in apply.variables]
        if None in found:
            own = [index.get(id(variable)) for variable in updated_by(apply.optimizer)]
            found = [i if i is not None else j for i, j in zip(found, own, strict=True)]
        if any(i is None or i >= len(weights) for i in found):
            raise refuse(self.model, f"gives {apply.optimizer.name!r} gradients of what is no variable of the model.")
        return [i for i in found if i is not None]

    def _update_of(self, shape: StepShape, number: int, donates: bool) -> Any:
        """The program that applies a part: an optimizer on exchanged gradients, exchanged states in their own types."""
        assert self._programs is not None
        applies = self._programs.traced.applies
        part, variables = shape.parts[number], self.variables
        changed = [variables.weights[i] for i in part.changed]

        def update(given: Sequence[Any], totals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            count = len(part.gradients)
            states = [
                jnp.array(total.reshape(variable.shape), variable.dtype, copy=True)
                for total, variable in zip(totals[count:], changed, strict=True)
            ]
            if number >= len(applies):
                return [], states
            trainable = given[:count]
            gradients = [
                total.reshape(value.shape).astype(value.dtype)
                for total, value in zip(totals[:count], trainable, strict=True)
            ]
            new, state = applies[number].optimizer.stateless_apply(list(given[count:]), gradients, list(trainable))
            return [*new, *state], states

        if not self._compiled:
            return update
        results: list[Any] = []
        if number < len(applies):
            updated = [variables.weights[i] for i in part.gradients]
            results = self._placement.shardings([*updated, *applies[number].optimizer.variables])
        lie = None if results is None else (results, self._placement.shardings(changed))
        return jax.jit(update, donate_argnums=(0,) if donates else (), out_shardings=lie)

    def _test_step(self, weights: Any, metrics: Any, seeds: Any, batch: Any) -> tuple[Any, Any]:
        """Traced."""
        model, variables = self.model, self.variables
        weights = self._placement.whole(weights, variables.weights)
        state = {id(v): value for v, value in zip(variables.weights, weights, strict=True)}
        state |= {id(v): seeds[i].astype(v.dtype) for i, v in enumerate(variables.seeds)}
        trainable, others = (
            [state[id(v)] for v in kind] for kind in (model.trainable_variables, model.non_trainable_variables)
        )
        with self.test_logs.watched():
            logs, after = model.test_step((trainable, others, metrics), batch)
            logs = flat(logs)
            self.test_logs.note(logs)
        return after[-1], logs

    def _metric_results(self, metrics: Any, logs: Sequence[tuple[str, MetricResult]]) -> tuple[Any, Any]:
        """Traced: results, and the values themselves as JAX arrays: cheaper here than one by one."""
        values = [jnp.asarray(value) for value in metrics]
        mapping = list(zip(self.variables.metrics, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return self.train_logs.results(dict(logs)), values


def _as_is(value: Any) -> Any:
    """Instead of `jax.jit`, under `run_eagerly`."""
    return value
