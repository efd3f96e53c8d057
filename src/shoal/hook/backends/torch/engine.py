"""The cut step on PyTorch: eager, so the step simply runs; what it changed is taken out and put back.

A step that applies several optimizers, or goes on with updated weights, stops at each apply until the update was made
(torch_cut.py). Whoever takes a piece over in the middle of a step runs it from the start, with what the applies gave.

Gradients and results are read where they lie: a torch tensor on the CPU and a numpy array share memory.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shoal.data.structure import flatten, rebuild
from shoal.errors import CannotDistribute
from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.assignments import Assigned, assignments
from shoal.hook.backends.base import AbstractEngine
from shoal.hook.backends.cut import Apply, Take, Weighting, check_known, cut, refuse, step_of
from shoal.hook.backends.torch.cut import Dependence, SuspendedStep
from shoal.hook.backends.torch.host_buffers import HostBuffers
from shoal.strategies.schema import Array
from shoal.training.engine import PartShape, StepShape
from shoal.training.logs import Logs, MetricResult, flat
from shoal.training.seeds import Seeds


class _Traced(NamedTuple):
    """What is known of a step once it has run."""

    applies: list[Apply]
    stops: bool  # whether it must stop at its applies
    touched: list[int]  # weights and states that it changes itself
    derived: list[int]  # of those: the ones that it computes from updated weights alone
    prepared: list[list[int]]  # for each apply: those of its variables that the step changed before it


class TorchEngine(AbstractEngine):
    """Keras on PyTorch."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._shape: StepShape | None = None
        self._traced = _Traced([], False, [], [], [])
        self._example: Any = None
        self._flights: dict[int, _Flight] = {}  # piece -> its step, where steps stop
        self._before: list[list[Any]] = []  # the variables of each apply of this step, as they were before it
        self._exchanged: dict[int, Array] = {}  # new states of the parts so far
        self._on_host = registry.current().is_on_host()
        self._buffers = HostBuffers()  # elsewhere gradients are brought here

    @property
    def shape(self) -> StepShape | None:
        return self._shape

    def read(self, variable: Any) -> Array:
        return _to_numpy(variable.value)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch could write to memory which is only to be read: it does not
            for variable, value in zip(variables, values, strict=True):
                variable.value.copy_(torch.from_numpy(value))

    def emptied(self, holder: Any) -> Any:
        holder.data = holder.data.new_empty(0)  # modules have this very parameter
        return holder

    def refilled(self, kept: Any, variable: Any) -> Any:
        kept.data = kept.data.new_empty(tuple(variable.shape))
        return kept

    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        assert self._shape is not None, "trace() first"
        shape = self._shape.parts[part]
        if not self._traced.stops:
            taken: list[Apply] = []
            overlay = _Overlay([self.variables.weights[i] for i in self._traced.touched])
            with overlay.shown(), torch.random.fork_rng():
                logs = self._run_step(batch, piece, Weighting(weight, self.loss_scale), taken.append)
            return self._outputs(shape, taken[0].gradients if taken else [], overlay, self._metric_changes(), logs)
        if part == 0 and piece in self._flights:  # computed before, for an exchange that did not commit
            self._flights.pop(piece).give_up()
        if piece not in self._flights:
            self._flights[piece] = _Flight(self, self._traced, self._before, (batch, piece, weight))
        flight = self._flights[piece]
        if part == len(self._shape.parts) - 1:
            flight.go_to_end(part)
            return self._outputs(shape, flight.gradients, flight.overlay, flight.metrics, flight.logs)
        flight.go_to(part)
        return self._outputs(shape, flight.gradients, flight.overlay, [], {})

    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        assert self._shape is not None, "trace() first"
        shape, weights = self._shape.parts[part], self.variables.weights
        with torch.no_grad():
            if part < len(self._traced.applies):
                self._update(part, shape, gradients)
            self._exchanged |= zip(shape.changed, (np.array(state) for state in states), strict=True)
            if part == len(self._shape.parts) - 1:
                for i, value in self._made_by_step(part, self._traced.derived).items():
                    weights[i].value.copy_(value)
                for i, state in self._exchanged.items():
                    weights[i].value.copy_(torch.from_numpy(state).view(weights[i].value.shape))
                self._end_step()

    def _end_step(self) -> None:
        for flight in self._flights.values():
            flight.give_up()
        self._flights, self._before, self._exchanged = {}, [], {}

    def begin(self, seed: int) -> None:
        self._end_step()
        super().begin(seed)

    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        self.model.eval()
        self.write(self.variables.seeds, list(seeds.of_piece(number)))
        self.model.reset_metrics()
        with torch.no_grad(), torch.random.fork_rng(), self.test_logs.watched():
            torch.manual_seed(seeds.of_backend(number))
            logs = flat(self.model.test_step(_to_tensors(batch)))
            self.test_logs.note(logs)
        return self._metric_changes(), {name: _to_numpy(value) for name, value in logs.items()}

    def results(self, metrics: Sequence[Array], logs: Sequence[tuple[str, MetricResult]]) -> Logs:
        self.write(self.variables.metrics, metrics)
        return {name: _to_numpy(value) for name, value in self.train_logs.results(dict(logs)).items()}

    # Updates ----------------------------------------------------------------------------------------

    def _update(self, part: int, shape: PartShape, gradients: Sequence[Array]) -> None:
        """One apply, on the exchanged gradients."""
        apply = self._traced.applies[part]
        if self._traced.stops:
            self._before.append([_copy(variable.value) for variable in apply.variables])
            for i, value in self._made_by_step(part, self._traced.prepared[part]).items():
                self.variables.weights[i].value.copy_(value)
        given = {}
        for i, gradient in zip(shape.gradients, gradients, strict=True):
            variable = self.variables.trainable[i]
            given[id(variable)] = torch.from_numpy(gradient).view(variable.value.shape).to(variable.value)
        apply.optimizer.apply([given.get(id(variable)) for variable in apply.variables], apply.variables)

    def _made_by_step(self, part: int, wanted: Sequence[int]) -> dict[int, Any]:
        """What the step itself has made of some weights by a part of it, whatever the batch."""
        if not wanted:
            return {}
        flight = next(iter(self._flights.values()), None)
        if flight is None:  # this worker has no piece in this step
            flight = self._flights[-1] = _Flight(self, self._traced, self._before, (self._example, 0, 1.0))
        flight.go_to(part)  # its piece may be another worker's by now
        return {i: flight.overlay.value_of(self.variables.weights[i]) for i in wanted}

    # The step ---------------------------------------------------------------------------------------

    def _run_step(self, batch: Any, piece: int, weighting: Weighting, take: Take) -> Logs:
        """`train_step` from its beginning, with somebody who takes its applies."""
        self._begin_piece(piece)
        with self._cut(take, weighting, Assigned()):
            return self._train(batch)

    def _begin_piece(self, piece: int) -> None:
        self.model.train()
        self.write(self.variables.seeds, list(self.seeds.of_piece(piece)))
        self.model.reset_metrics()
        # Dropout without a seed draws from torch's own numbers, not from a generator.
        torch.manual_seed(self.seeds.of_backend(piece))

    def _train(self, batch: Any) -> Logs:
        logs = flat(step_of(self.model)(_to_tensors(batch)))
        self.train_logs.note(logs)
        return logs

    @contextlib.contextmanager
    def _cut(self, take: Take, weighting: Weighting, assigned: Assigned) -> Iterator[None]:
        """While a step runs; not while it stands at an apply."""
        with (
            cut(self.model, take, weighting, self.builds_optimizers),
            assignments(self.model, self.variables, assigned=assigned),
            self.train_logs.watched(),
            _no_optimizers_of_torch(self.model),
        ):
            yield

    def _outputs(
        self, shape: PartShape, gradients: Sequence[Any], overlay: _Overlay, metrics: Sequence[Array], logs: Logs
    ) -> list[Array]:
        weights = self.variables.weights
        return [
            *self._gradients(shape, gradients),
            *(_to_numpy(overlay.value_of(weights[i])) for i in shape.changed),
            *(metrics[i] for i in shape.metrics),
            *(_to_numpy(logs[name]) for name in shape.extras),
        ]

    def _gradients(self, shape: PartShape, gradients: Sequence[Any]) -> list[Array]:
        """A variable that this piece did not use has a gradient of zero, as in a sum over the whole batch."""
        if not shape.gradients:
            return []
        apply = next(a for a, part in zip(self._traced.applies, self._parts, strict=False) if part is shape)
        given = {id(variable): gradient for variable, gradient in zip(apply.variables, gradients, strict=True)}
        weights = [self.variables.trainable[i] for i in shape.gradients]
        used = [_to_single(gradient) for v in weights if (gradient := given.get(id(v))) is not None]
        brought = iter([tensor.numpy() for tensor in used] if self._on_host else self._buffers.bring(used))
        return [np.zeros(tuple(v.shape), np.float32) if given.get(id(v)) is None else next(brought) for v in weights]

    @property
    def _parts(self) -> tuple[PartShape, ...]:
        assert self._shape is not None
        return self._shape.parts

    def _metric_changes(self) -> list[Array]:
        return [_to_numpy(v.value) - fresh for v, fresh in zip(self.variables.metrics, self._fresh, strict=True)]

    # Looking at the step ----------------------------------------------------------------------------

    def trace(self, batch: Any) -> StepShape:
        self._refuse_buffers()
        self._example = batch
        if self.is_own_step:
            self.know_optimizers([self.model.optimizer])
            self._shape = self._look_at_own(batch)
            return self._shape
        applied: list[Apply] = []
        self._run_without_effect(batch, applied.append)
        self.know_optimizers([apply.optimizer for apply in applied])
        check_known(self.model, applied, self.variables.weights)
        self._shape = self._look_at(batch)
        return self._shape

    def _run_without_effect(
        self, batch: Any, take: Take, follow: Dependence | None = None
    ) -> tuple[Logs, bool, Assigned]:
        """Logs, whether the step weighted its loss, and what it assigned."""
        weighting, assigned = Weighting(1.0, self.loss_scale), Assigned()
        with _Overlay(self.variables.weights).shown(), torch.random.fork_rng():
            self._begin_piece(0)
            with self._cut(take, weighting, assigned):
                if follow is None:
                    return self._train(batch), weighting.done, assigned
                return follow.through(lambda: self._train(batch)), weighting.done, assigned

    def _look_at_own(self, batch: Any) -> StepShape:
        """Keras's own step: runs it once. Little is kept meanwhile, since the model may be as large as the memory."""
        variables, weights = self.variables, self.variables.weights
        places = {id(variable): i for i, variable in enumerate(weights)}
        gradients: list[tuple[int, str]] = []

        def take(apply: Apply) -> None:
            given = zip(apply.variables, apply.gradients, strict=True)
            gradients.extend((places[id(variable)], _dtype_of(g)) for variable, g in given if g is not None)

        weighting, assigned = Weighting(1.0, self.loss_scale), Assigned()
        with _Overlay(variables.states).shown(), torch.random.fork_rng():
            self._begin_piece(0)
            before = [keras_private.writes_to(variable.value) for variable in weights]
            with self._cut(take, weighting, assigned):
                logs = self._train(batch)
            touched = [i for i, v in enumerate(weights) if keras_private.writes_to(v.value) != before[i]]
        for variable in weights:
            variable.value.grad = None
        of_metrics = self.know_logs(assigned.metrics)
        extras = [(name, np.shape(_to_numpy(value))) for name, value in logs.items() if name not in of_metrics]
        metrics, averaged = list(range(len(variables.metrics))), self.train_logs.averaged()
        part = PartShape(variables, gradients, touched, metrics, extras, weighting.done, averaged)
        self._traced = _Traced([], False, touched, [], [])
        return StepShape((part,), tuple(logs))

    def _look_at(self, batch: Any) -> StepShape:
        """Runs the step once more and follows what depends on what."""
        variables, weights = self.variables, self.variables.weights
        places = {id(variable): i for i, variable in enumerate(weights)}
        applies: list[Apply] = []
        prepared: list[list[int]] = []
        follow = Dependence()
        tensors, skeleton = flatten(_to_tensors(batch))
        for tensor in tensors:
            follow.mark(tensor)

        def take(apply: Apply) -> None:
            written = [places[id(v)] for v in apply.variables if follow.was_written(v.value)]
            if any(follow.depends_on_data(weights[i].value) for i in written):
                raise refuse(self.model, f"changes weights by itself, from the batch, before {apply.optimizer.name!r}.")
            prepared.append(written)
            follow.mark_updated([variable.value for variable in apply.variables], len(applies))
            applies.append(apply)

        logs, weighted, assigned = self._run_without_effect(rebuild(skeleton, tensors), take, follow)
        touched = [i for i, variable in enumerate(weights) if follow.was_written(variable.value)]
        derived = [
            i for i in touched if not follow.depends_on_data(weights[i].value) and follow.part_of(weights[i].value) > 0
        ]
        exchanged = [i for i in touched if i not in derived]
        of_metrics = self.know_logs(assigned.metrics)
        extras = {name: value for name, value in logs.items() if name not in of_metrics}
        late = [*(weights[i].value for i in exchanged), *(v.value for v in variables.metrics), *extras.values()]
        count = len(applies)
        goes_on = count > 0 and (bool(derived) or any(follow.part_of(value) == count for value in late))
        parts = []
        for number in range(max(1, count + goes_on)):
            last = number == max(1, count + goes_on) - 1
            apply = applies[number] if number < count else None
            given = zip(apply.variables, apply.gradients, strict=True) if apply is not None else ()
            parts.append(
                PartShape(
                    variables,
                    [(places[id(variable)], _dtype_of(g)) for variable, g in given if g is not None],
                    exchanged if last else [],
                    list(range(len(variables.metrics))) if last else [],
                    [(name, np.shape(_to_numpy(value))) for name, value in extras.items()] if last else [],
                    weighted,
                    self.train_logs.averaged(),
                )
            )
        self._traced = _Traced(
            [apply._replace(gradients=[]) for apply in applies], count > 1 or goes_on, touched, derived, prepared
        )
        return StepShape(tuple(parts), tuple(logs), tuple(derived))

    def _refuse_buffers(self) -> None:
        """A torch module's own buffers (its BatchNorm's statistics) are no Keras variables: who would combine them?"""
        for name, _ in self.model.named_buffers():
            raise CannotDistribute(
                f"{type(self.model).__name__} {self.model.name!r} wraps a torch module with a buffer, {name}, which "
                "Shoal would not combine over workers. Use Keras's own layer, such as keras.layers.BatchNormalization."
            )


class _Overlay:
    """Values of variables that belong to one piece's step, and are in the model only while it runs."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = variables
        self._own: dict[int, Any] = {}

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        under = [_copy(variable.value) for variable in self._variables]
        with torch.no_grad():
            for variable in self._variables:
                if id(variable) in self._own:
                    variable.value.copy_(self._own[id(variable)])
        try:
            yield
        finally:
            with torch.no_grad():
                for variable, value in zip(self._variables, under, strict=True):
                    self._own[id(variable)] = _copy(variable.value)
                    variable.value.copy_(value)

    def value_of(self, variable: Any) -> Any:
        """As the step left it."""
        return self._own[id(variable)]

    def forget(self, variables: Sequence[Any]) -> None:
        """They were updated: what the step made of them before is over."""
        for variable in variables:
            self._own.pop(id(variable), None)


class _Flight:
    """The step of one piece, on its way from apply to apply."""

    def __init__(
        self, engine: TorchEngine, traced: _Traced, before: Sequence[Sequence[Any]], what: tuple[Any, int, float]
    ) -> None:
        """`before`: what the variables of the applies that are over were before them, and will be of the later ones.

        `what`: batch, piece, weight.
        """
        batch, self._piece, weight = what
        self._engine = engine
        self._traced = traced
        self._before = before
        variables = engine.variables
        touched = [variables.weights[i] for i in traced.touched]
        self.overlay = _Overlay([*touched, *variables.seeds, *variables.metrics])
        self._weighting = Weighting(weight, engine.loss_scale)
        self._assigned = Assigned()
        self._number = -1  # of the apply where it stands
        self.gradients: list[Any] = []  # that it gave there
        self.metrics: list[Array] = []
        self.logs: Logs = {}
        self._step = SuspendedStep(lambda stop: self._run(batch, stop), [v.value for v in variables.trainable])

    def go_to(self, part: int) -> None:
        """To the apply of a part; past the last apply, to the end."""
        while self._number < part and not self._step.is_over:
            self._go_on()
        if self._step.is_over and part < len(self._traced.applies):
            raise refuse(
                self._engine.model,
                f"applied optimizers {self._number} times on one piece, and {len(self._traced.applies)} times before.",
            )

    def go_to_end(self, part: int) -> None:
        """Through the last part of the step: to its end, of which nothing depends on its last apply."""
        self.go_to(part)
        gradients = self.gradients
        while not self._step.is_over:
            self._go_on()
        self.gradients = gradients if part < len(self._traced.applies) else []

    def give_up(self) -> None:
        self._step.give_up()

    def _run(self, batch: Any, stop: Callable[[Apply], None]) -> Logs:
        self._stop = stop
        self._engine._begin_piece(self._piece)
        return self._engine._train(batch)

    def _go_on(self) -> None:
        passed = self._traced.applies[self._number].variables if self._number >= 0 else []
        self.overlay.forget(passed)
        engine, take = self._engine, lambda apply: self._stop(apply)
        with self._shown_past(self._number + 1), self.overlay.shown():
            with engine._cut(take, self._weighting, self._assigned):
                apply = self._step.go_on()
            self.metrics = engine._metric_changes()
        self._number += 1
        if apply is not None:
            self.gradients = apply.gradients
        else:
            self.gradients, self.logs = [], self._step.result

    @contextlib.contextmanager
    def _shown_past(self, number: int) -> Iterator[None]:
        """Where others have computed the applies before: their variables as they were after `number` of them."""
        later = list(zip(self._traced.applies, self._before, strict=False))[number:]
        past: dict[int, tuple[Any, Any]] = {}
        for apply, values in later:
            for variable, value in zip(apply.variables, values, strict=True):
                past.setdefault(id(variable), (variable, value))
        now = [_copy(variable.value) for variable, _ in past.values()]
        with torch.no_grad():
            for variable, value in past.values():
                variable.value.copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for (variable, _), value in zip(past.values(), now, strict=True):
                    variable.value.copy_(value)


@contextlib.contextmanager
def _no_optimizers_of_torch(model: Any) -> Iterator[None]:
    """A step that uses torch's own optimizers would update each worker's weights by itself."""

    def refuse_it(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise refuse(model, f"uses torch.optim.{type(optimizer).__name__}. Use an optimizer of keras.optimizers.")

    hook = register_optimizer_step_pre_hook(refuse_it)
    try:
        yield
    finally:
        hook.remove()


def _copy(tensor: Any) -> Any:
    return tensor.detach().clone()


def _dtype_of(gradient: Any) -> str:
    half = gradient.dtype in (torch.bfloat16, torch.float16)
    return "float32" if half else str(gradient.dtype).removeprefix("torch.")


def _to_tensors(batch: Any) -> Any:
    leaves, skeleton = flatten(batch)
    return rebuild(skeleton, [keras.ops.convert_to_tensor(leaf) for leaf in leaves])


def _to_numpy(tensor: Any) -> Array:
    tensor = torch.as_tensor(tensor).detach().cpu()
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _to_single(gradient: Any) -> Any:
    """Half-precision gradients are summed in float32; sparse ones become dense."""
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient
