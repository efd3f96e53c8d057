"""The cut step on TensorFlow: a tf.function for each of its parts, and one for each update.

A step assigns in place here. So a part reads what it may change first, and puts it back last: after a piece the
model is what it was, and the piece's new values are outputs. In a later part the variables already hold what the
earlier applies gave; a part that still needs what was before them begins by putting that back.

Functions are traced with an open batch dimension from the start. Tracing with a fixed size first and an open one
later, as tf.function does by itself, gives other constants to fold and so other bits, depending on which sizes a
worker happened to see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shoal.data.structure import flatten, rebuild
from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.assignments import Assigned, assignments, nothing_assigned
from shoal.hook.backends.base import AbstractEngine, is_seed
from shoal.hook.backends.cut import Apply, Weighting, check_known, cut, refuse, step_of
from shoal.hook.backends.tensorflow.cut import PlacedApply, StepGraph, handle_of, position
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, StepShape, aligned, checksum
from shoal.training.logs import Logs, MetricResult, flat
from shoal.training.seeds import Seeds


class _StepOutputs(NamedTuple):
    """What a step gives out, once it has run or was traced."""

    applies: list[Apply]
    placed: list[PlacedApply]
    changed: list[dict[int, Any]]  # for each apply: those of its variables that the step assigned before it, by index
    states: dict[int, Any]  # new values of weights and states that the step assigned itself, by index
    metrics: list[Any]  # changes of their variables
    logs: Logs
    assigned: Assigned
    weighted: bool


_NO_APPLY = Apply(None, [], [], [])  # of a part after the last


class _Part(NamedTuple):
    """How a part of the step is computed."""

    shape: PartShape
    present: list[int]  # which of the apply's gradients there are
    looks_back: bool
    needs: Callable[[Any], bool]  # whether a variable's assignments have a part in it: all else is left out


class TensorflowEngine(AbstractEngine):
    """Keras on TensorFlow."""

    pieces_last = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._eagerly = bool(model.run_eagerly)
        self._on_host = registry.current().is_on_host()
        self._test = _ByShape(self._test_step, self._function)
        self._results: dict[Any, Any] = {}
        self._shape: StepShape | None = None
        self._parts: list[_Part] = []
        self._pieces: list[_ByShape] = []
        self._updates: list[Any] = []
        self._applies: list[tuple[Any, list[Any]]] = []  # optimizer and variables of each
        self._derived: list[int] = []  # weights and states that the step computes from updated ones alone
        self._derive: _ByShape | None = None
        self._prepare: dict[int, _ByShape] = {}  # by apply: what the step made of its variables before it
        self._derive_looks_back = False
        self._example: Any = None
        self._before: list[list[Any]] = []  # the variables of each apply of this step, as they were before it
        self._exchanged: list[Any] = []  # new states of the parts so far

    @property
    def shape(self) -> StepShape | None:
        return self._shape

    def read(self, variable: Any) -> Array:
        return _to_numpy(variable.value.read_value())

    def token(self, variable: Any) -> Any:
        return variable.value.read_value()  # while it is held, TensorFlow assigns into other memory

    def differs(self, variable: Any, token: Any) -> bool:
        before, now = np.asarray(token), np.asarray(variable.value.read_value())
        return before.ctypes.data != now.ctypes.data and checksum(before) != checksum(now)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))

    def emptied(self, holder: Any) -> Any:
        # The handle stays: functions have been traced with it. Unlike `assign`, this does not look at shapes.
        tf.raw_ops.AssignVariableOp(resource=holder.handle, value=tf.zeros((0,), holder.dtype))
        return holder

    def refilled(self, kept: Any, variable: Any) -> Any:
        tf.raw_ops.AssignVariableOp(resource=kept.handle, value=tf.zeros(tuple(variable.shape), kept.dtype))
        return kept

    def trace(self, batch: Any) -> StepShape:
        leaves, skeleton = flatten(batch)
        self._example = rebuild(skeleton, [_tensor(leaf) for leaf in leaves])
        found, graph = self._look_at(batch)
        self._applies = [(apply.optimizer, apply.variables) for apply in found.applies]
        before = self.variables
        self.know_optimizers([optimizer for optimizer, _ in self._applies])
        check_known(self.model, found.applies, self.variables.weights)
        if not self.variables.same(before):  # an optimizer updates what was taken for a state, or is new
            found, graph = self._look_at(batch)
        self._shape = self._shape_of(found, graph)
        self._pieces = [
            _ByShape(self._part_function(number), self._function, self._count_new)
            for number in range(len(self._shape.parts))
        ]
        self._updates = [self._function(self._update_function(number)) for number in range(len(self._shape.parts))]
        alike = {id(self.variables.weights[i]) for i in (*self._derived, *(i for c in found.changed for i in c))}
        self._derive = _ByShape(partial(self._derive_step, alike), self._function) if self._derived else None
        self._prepare = {
            number: _ByShape(partial(self._prepare_step, number, alike), self._function)
            for number, changed in enumerate(found.changed)
            if changed
        }
        return self._shape

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        if part == 0:
            self._begin_step()
        back = self._back(part, self._parts[part].looks_back)
        outputs = self._pieces[part](batch, self.seeds.of_piece(piece), *self._factors(weight), *back)
        return [_to_numpy(output) for output in outputs] if self._on_host else _in_one_transfer(outputs)

    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        assert self._shape is not None, "trace() first"
        if part == 0:
            self._begin_step()
        last = part == len(self._shape.parts) - 1
        looks_back = self._prepare or self._derive_looks_back or any(p.looks_back for p in self._parts[part + 1 :])
        if part < len(self._applies) and looks_back:
            self._before.append([tf.identity(v.value) for v in self._applies[part][1]])
        if part in self._prepare:
            back = self._back(part, looks_back=True)
            self._prepare[part](self._example, self.seeds.of_piece(0), *self._factors(1.0), *back)
        # A variable lies where the tensor lies that was assigned to it: states must not lie in totals, whose memory is
        # another training's after this one.
        self._exchanged += [tf.constant(np.array(s)) for s in states]
        update = self._updates[part]
        if not last:
            update([_borrow(g) for g in gradients], [])
        elif self._derive is None:
            update([_borrow(g) for g in gradients], self._exchanged)
        else:
            update([_borrow(g) for g in gradients], [])
            back = self._back(len(self._parts), self._derive_looks_back)
            self._derive(self._example, self.seeds.of_piece(0), *self._factors(1.0), *back)
            update([], self._exchanged)
        if last:
            self._begin_step()

    def refuse_unless_distributable(self) -> None:
        strategy = getattr(self.model, "distribute_strategy", None)
        if strategy is not None and not type(strategy).__name__.startswith("_Default"):
            raise CannotDistribute(
                f"the model was made in the scope of a tf.distribute.{type(strategy).__name__}. Leave the scope out: "
                "`shoal run` distributes the training."
            )
        super().refuse_unless_distributable()

    def _begin_step(self) -> None:
        self._before, self._exchanged = [], []

    def _back(self, part: int, looks_back: bool) -> list[Any]:
        """What the variables of the applies before a part were, where it needs that."""
        return [value for values in self._before[:part] for value in values] if looks_back else []

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        metrics, logs = self._test(batch, seeds.of_piece(number))
        return [_to_numpy(value) for value in metrics], logs

    def results(self, metrics: Sequence[Array], logs: Sequence[tuple[str, MetricResult]]) -> Logs:
        key = tuple(logs)
        if key not in self._results:
            self._results[key] = self._function(lambda values: self._metric_results(values, key))
        found: Logs = self._results[key]([tf.constant(value) for value in metrics])
        return found

    def _function(self, function: Callable[..., Any], signature: Sequence[Any] | None = None) -> Any:
        if self._eagerly:
            return function
        # TensorFlow counts how often a function is traced by its code, and all of one kind have the same: a partial
        # function counts by itself.
        return tf.function(
            partial(function), input_signature=signature, jit_compile=self.model.jit_compile or None, autograph=False
        )

    def _count_new(self, specs: Sequence[Any]) -> None:
        if not self._eagerly:
            self.count_compilation(list(specs))

    def _factors(self, weight: float) -> list[Array]:
        """Of a piece's loss: its weight, and its scale where servers tell it."""
        return [np.asarray(factor, np.float32) for factor in (weight, self.loss_scale) if factor is not None]

    # The step ---------------------------------------------------------------------------------------

    def _step(
        self,
        part: int,
        batch: Any,
        seeds: Any,
        rest: Sequence[Any],
        passes: Callable[[Any], bool] = lambda _: True,
    ) -> _StepOutputs:
        """`train_step`, as a part of it sees the variables. Puts back what it changes, but for metrics and seeds.

        `rest`: the factors of the loss, and what variables were before the applies of earlier parts, if that is needed.
        """
        model, variables = self.model, self.variables
        scaled = self.loss_scale is not None
        weight, scale, back = rest[0], rest[1] if scaled else None, rest[2 if scaled else 1 :]
        past = _Past(self._applies[:part], back) if back else None
        now: dict[int, tuple[Any, Any]] = past.begin() if past is not None else {}

        def remember(variable: Any) -> None:
            now.setdefault(id(variable), (variable, tf.identity(variable.value)))

        taken: list[Apply] = []
        placed: list[PlacedApply] = []
        changed: list[dict[int, Any]] = []
        places = {id(variable): i for i, variable in enumerate(variables.weights)}
        assigned = Assigned()
        graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None

        def take(apply: Apply) -> None:
            # Here, within the step's graph: a sparse gradient is made of several of its tensors.
            apply = apply._replace(gradients=[None if g is None else _dense(g) for g in apply.gradients])
            if graph is not None:
                if tf.compat.v1.get_default_graph() is not graph:
                    raise refuse(model, "applies its optimizer in a tf.cond or tf.while_loop. Apply it outside of it.")
                placed.append(PlacedApply(position(), frozenset(map(handle_of, apply.variables))))
            apply = apply._replace(gradients=[None if g is None else _dense(g) for g in apply.gradients])
            own = [places[id(v)] for v in apply.variables if places.get(id(v)) in assigned.weights]
            changed.append({i: tf.identity(variables.weights[i].value) for i in own})
            if past is not None:
                past.go_on(len(taken))
            taken.append(apply)

        weighting = Weighting(weight, scale)
        self._set_seeds(seeds)
        model.reset_metrics()
        with (
            cut(model, take, weighting, self.builds_optimizers),
            assignments(model, variables, remember, passes, assigned),
            self.train_logs.watched(),
            _inlined_functions(),
        ):
            logs = flat(step_of(model)(batch))
            self.train_logs.note(logs)
        logs = {name: tf.convert_to_tensor(value) for name, value in logs.items()}
        states = {i: tf.identity(variables.weights[i].value) for i in sorted(assigned.weights)}
        for variable, value in now.values():
            variable.value.assign(value)
        return _StepOutputs(taken, placed, changed, states, self._metric_changes(), logs, assigned, weighting.done)

    def _look_at(self, batch: Any) -> tuple[_StepOutputs, StepGraph | None]:
        """What the step does; from its graph, if it has one."""
        inputs = (batch, self.seeds.of_piece(0), *self._factors(1.0))
        found: list[_StepOutputs] = []

        def whole(batch: Any, seeds: Any, *rest: Any) -> None:
            found.append(self._step(0, batch, seeds, rest))

        traced = _ByShape(whole, lambda function, signature: tf.function(partial(function), signature, autograph=False))
        try:
            graph = traced.trace(*inputs).graph
        except Exception:
            if not self._eagerly:
                raise
            whole(*inputs)  # it needs values to go on with: nothing is known of what depends on what
            return found[-1], None
        count = len(tf.nest.flatten([_tensor(leaf) for leaf in flatten(batch)[0]], expand_composites=True))
        return found[-1], StepGraph(graph, range(count + 2), found[-1].placed)

    def _shape_of(self, found: _StepOutputs, graph: StepGraph | None) -> StepShape:
        """Sorts what the step gives out by the parts that know it."""
        variables, applies = self.variables, found.applies

        def part_of(value: Any) -> int:
            return graph.part_of(value) if graph is not None else len(applies)

        for apply, changed in zip(applies, found.changed, strict=True):
            if any(graph is None or graph.depends_on_data(value) for value in changed.values()):
                raise refuse(self.model, f"changes weights by itself, from the batch, before {apply.optimizer.name!r}.")
        of_metrics = self.know_logs(found.assigned.metrics)
        extras = {name: value for name, value in found.logs.items() if name not in of_metrics}
        self._derived = [
            i
            for i, value in found.states.items()
            if graph is not None and not graph.depends_on_data(value) and graph.part_of(value) > 0
        ]
        states = {i: value for i, value in found.states.items() if i not in self._derived}
        last = max((0, *map(part_of, (*states.values(), *found.metrics, *extras.values()))))
        index = {id(variable): i for i, variable in enumerate(variables.trainable)}
        self._parts = []
        for number in range(max(1, len(applies), last + 1)):
            own = applies[number] if number < len(applies) else _NO_APPLY
            present = [i for i, gradient in enumerate(own.gradients) if gradient is not None]
            gradients = {i: own.gradients[i] for i in present}
            known = {i: value for i, value in states.items() if part_of(value) == number}
            metrics = [i for i, value in enumerate(found.metrics) if part_of(value) == number]
            shown = {name: value for name, value in extras.items() if part_of(value) == number}
            shape = PartShape(
                variables,
                [(index[id(own.variables[i])], gradient.dtype.name) for i, gradient in gradients.items()],
                list(known),
                metrics,
                [(name, tuple(value.shape)) for name, value in shown.items()],
                found.weighted,
                self.train_logs.averaged(),
            )
            outputs = [*gradients.values(), *known.values(), *(found.metrics[i] for i in metrics), *shown.values()]
            looks_back = number > 0 and (graph is None or graph.looks_back(outputs, number))
            self._parts.append(_Part(shape, present, looks_back, self._needs(graph, outputs)))
        derived = [found.states[i] for i in self._derived]
        self._derive_looks_back = graph is not None and graph.looks_back(derived, len(applies))
        return StepShape(tuple(part.shape for part in self._parts), tuple(found.logs), tuple(self._derived))

    def _needs(self, graph: StepGraph | None, outputs: Sequence[Any]) -> Callable[[Any], bool]:
        """TensorFlow carries out every assignment, with all that it takes to compute the value: a metric's of the
        generator, in the discriminator's part. What a part does not give out need not be assigned in it.
        """
        if graph is None:
            return lambda variable: True
        seeds = {id(variable) for variable in self.variables.seeds}
        written = graph.written_for(outputs)
        return lambda variable: id(variable) in seeds or is_seed(variable) or handle_of(variable) in written

    def _part_function(self, number: int) -> Callable[..., list[Any]]:
        """Traced: a part of the step for one piece, in schema order."""

        def run(batch: Any, seeds: Any, *rest: Any) -> list[Any]:
            part = self._parts[number]
            found = self._step(number, batch, seeds, rest, part.needs)
            gradients = found.applies[number].gradients if number < len(found.applies) else []
            weights = self.variables.weights
            return [
                *(gradients[i] for i in part.present),
                *(found.states[i] if i in found.states else tf.identity(weights[i].value) for i in part.shape.changed),
                *(found.metrics[i] for i in part.shape.metrics),
                *(found.logs[name] for name in part.shape.extras),
            ]

        return run

    def _update_function(self, number: int) -> Callable[..., None]:
        """Traced: an optimizer on exchanged gradients; and exchanged states in their own types, after the last part."""
        changed = [i for part in self._parts for i in part.shape.changed]

        def run(gradients: Sequence[Any], states: Sequence[Any]) -> None:
            if gradients:
                optimizer, variables = self._applies[number]
                shaped: list[Any] = [None] * len(variables)
                for i, gradient in zip(self._parts[number].present, gradients, strict=True):
                    shaped[i] = tf.cast(tf.reshape(gradient, variables[i].shape), variables[i].dtype)
                optimizer.apply(shaped, variables)
            for i, state in zip(changed if states else [], states, strict=True):
                variable = self.variables.weights[i]
                variable.assign(tf.cast(tf.reshape(state, variable.shape), variable.dtype))

        return run

    def _derive_step(self, alike: set[int], batch: Any, seeds: Any, *rest: Any) -> None:
        """Traced: what the step makes of updated weights, whatever the batch."""
        found = self._step(len(self._applies), batch, seeds, rest, passes=lambda variable: id(variable) in alike)
        for i in self._derived:
            self.variables.weights[i].value.assign(found.states[i])

    def _prepare_step(self, number: int, alike: set[int], batch: Any, seeds: Any, *rest: Any) -> None:
        """Traced: what the step makes of the variables of an apply before it, whatever the batch."""
        found = self._step(number, batch, seeds, rest, passes=lambda variable: id(variable) in alike)
        for i, value in found.changed[number].items():
            self.variables.weights[i].value.assign(value)

    def _metric_changes(self) -> list[Any]:
        return [
            tf.convert_to_tensor(v.value) - tf.constant(fresh)
            for v, fresh in zip(self.variables.metrics, self._fresh, strict=True)
        ]

    def _set_seeds(self, seeds: Any) -> None:
        for i, variable in enumerate(self.variables.seeds):
            variable.assign(tf.cast(seeds[i], variable.dtype))

    def _test_step(self, batch: Any, seeds: Any) -> tuple[list[Any], Any]:
        self._set_seeds(seeds)
        self.model.reset_metrics()
        with self.test_logs.watched():
            logs = flat(self.model.test_step(batch))
            self.test_logs.note(logs)
        return self._metric_changes(), logs

    def _metric_results(self, metrics: Sequence[Any], logs: Sequence[tuple[str, MetricResult]]) -> Any:
        for variable, value in zip(self.variables.metrics, metrics, strict=True):
            variable.assign(value)
        return self.train_logs.results(dict(logs))


class _Past:
    """Lets a part see the variables of earlier applies as they were, from apply to apply."""

    def __init__(self, applies: Sequence[tuple[Any, list[Any]]], before: Sequence[Any]) -> None:
        supply = iter(before)
        self._before = [{id(v): next(supply) for v in variables} for _, variables in applies]
        self._variables = [variables for _, variables in applies]
        self._now: dict[int, tuple[Any, Any]] = {}

    def begin(self) -> dict[int, tuple[Any, Any]]:
        """Goes to before the first apply. Returns what is to be put back in the end."""
        for variables in self._variables:
            for variable in variables:
                self._now.setdefault(id(variable), (variable, tf.identity(variable.value)))
        for key, (variable, _) in self._now.items():
            variable.value.assign(next(before[key] for before in self._before if key in before))
        return dict(self._now)

    def go_on(self, number: int) -> None:
        """Past an apply: to what its variables were before the next one that updates them, or are now."""
        if number >= len(self._variables):
            return
        later = self._before[number + 1 :]
        for variable in self._variables[number]:
            now = self._now[id(variable)][1]
            variable.value.assign(next((before[id(variable)] for before in later if id(variable) in before), now))


def build_by_step(model: Any, batch: Any, step: Callable[[Any], Any]) -> None:
    """Builds the layers of a model that has no `call` to build them with, by running a step of its, without effect.

    As plain Keras on TensorFlow does, whose first step makes the variables.
    """
    leaves, skeleton = flatten(batch)
    data = rebuild(skeleton, [_tensor(leaf) for leaf in leaves])
    with cut(model, lambda _: None, Weighting(1.0)), nothing_assigned():
        step(data)


class _ByShape:
    """A function per kind of batch: the same structure, dtypes and shapes but for the batch's size."""

    def __init__(
        self,
        function: Callable[..., Any],
        compile_: Callable[..., Any],
        on_new: Callable[[Sequence[Any]], None] = lambda specs: None,
    ) -> None:
        """`on_new` is told for which kind of batch there is one more."""
        self._on_new = on_new
        self._function = function
        self._compile = compile_
        self._compiled: dict[Any, Any] = {}

    def __call__(self, batch: Any, *rest: Any) -> Any:
        function, tensors = self._prepare(batch, rest)
        return function(*tensors)

    def trace(self, batch: Any, *rest: Any) -> Any:
        """The concrete function, which is not run."""
        function, tensors = self._prepare(batch, rest)
        return function.get_concrete_function(*tensors)

    def _prepare(self, batch: Any, rest: Sequence[Any]) -> tuple[Any, list[Any]]:
        leaves, skeleton = flatten(batch)
        tensors = [_tensor(leaf) for leaf in leaves]
        specs = [_spec(tensor) for tensor in tensors]
        key = (str(skeleton), tuple(specs), len(rest))
        if key not in self._compiled:

            def flat_function(*inputs: Any) -> Any:
                return self._function(rebuild(skeleton, inputs[: len(leaves)]), *inputs[len(leaves) :])

            signature = [*specs, *(tf.TensorSpec(r.shape, r.dtype) for r in rest)]
            self._compiled[key] = self._compile(flat_function, signature)
            self._on_new(specs)
        return self._compiled[key], [*tensors, *(tf.convert_to_tensor(r) for r in rest)]


@contextlib.contextmanager
def _inlined_functions() -> Iterator[None]:
    """While a step is traced, the tf.functions that it calls become part of it: they may apply optimizers."""
    kind: Any = type(tf.function(lambda: None))
    original = kind.__call__

    def inlined(self: Any, *args: Any, **kwargs: Any) -> Any:
        return keras_private.python_of(self)(*args, **kwargs)

    kind.__call__ = inlined
    try:
        yield
    finally:
        kind.__call__ = original


def _tensor(leaf: Any) -> Any:
    """A leaf of a batch, of whatever kind."""
    return leaf if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(leaf)


def _spec(tensor: Any) -> Any:
    """Of any number of such rows."""
    shape = (None, *tensor.shape[1:])
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def _to_numpy(tensor: Any) -> Array:
    """Where it lies: while the array is held, TensorFlow writes to other memory. A scalar as an array without axes."""
    return np.asarray(tensor)


def _in_one_transfer(tensors: Sequence[Any]) -> list[Array]:
    """From a device: joined there, by type, since a transfer costs more than its bytes."""
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(number)
    found: list[Array] = [np.empty(0)] * len(tensors)
    for members in groups.values():
        joined = np.asarray(tf.concat([tf.reshape(tensors[i], [-1]) for i in members], 0))
        start = 0
        for i in members:
            shape = tuple(tensors[i].shape)
            stop = start + int(np.prod(shape))
            found[i] = joined[start:stop].reshape(shape)
            start = stop
    return found


def _borrow(view: Array) -> Any:
    """A tensor that lies where the view lies; a copy where TensorFlow could not read it in place."""
    return tf.experimental.dlpack.from_dlpack(view.__dlpack__()) if aligned(view) else tf.constant(view)


def _dense(gradient: Any) -> Any:
    """Embeddings' sparse gradients become dense; half precision is summed in float32."""
    dense = tf.convert_to_tensor(gradient)
    return tf.cast(dense, tf.float32) if dense.dtype in (tf.bfloat16, tf.float16) else dense
