"""What Shoal asks of a Keras backend: compute a piece, apply an update, test a batch.

An engine belongs to one model and is kept from call to call, as long as the model stays what it is. Between its calls
the model's variables always hold the committed state, so that callbacks may look at them.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from shoal.errors import CannotDistribute, Diverged
from shoal.hook.seeds import Seeds
from shoal.strategies.schema import ALIGNMENT, Array, Combine, Entry, Schema

Logs = dict[str, Any]


class Variables:
    """A model's variables, sorted by what a step does with them."""

    def __init__(self, model: Any) -> None:
        optimizer = getattr(model, "optimizer", None)  # a model that was never compiled has none
        self.trainable: list[Any] = list(model.trainable_variables)
        others: list[Any] = list(model.non_trainable_variables)
        self.seeds = [v for v in others if is_seed(v)]
        self.states = [v for v in others if not is_seed(v)]  # moving statistics, counters, frozen weights
        self.metrics: list[Any] = list(model.metrics_variables)
        self.optimizer: list[Any] = list(optimizer.variables) if optimizer is not None else []

    def same(self, other: Variables) -> bool:
        mine, theirs = vars(self), vars(other)
        return all([id(v) for v in mine[kind]] == [id(v) for v in theirs[kind]] for kind in mine)


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return variable.path.endswith("seed_generator_state") and tuple(variable.shape) == (2,)


def is_window(variable: Any) -> bool:
    """Whether a variable only shows some rows of a table that is on servers: nothing that others would have to know."""
    return getattr(variable, "is_window", False)


class StepShape:
    """What one training step gives out, as found when it was traced: the order of its outputs."""

    def __init__(
        self,
        variables: Variables,
        gradients: Sequence[tuple[int, str]],  # index of the trainable variable, dtype of its gradient
        changed: Sequence[int],  # indices of the states that a step assigns
        extras: Sequence[tuple[str, tuple[int, ...]]],  # logs that are no metric: name, shape
        logs: Sequence[str],  # names of all logs, in the order of `train_step`
        weighted: bool,  # whether the step itself weights its gradients by the piece's share of the samples
    ) -> None:
        self.logs = tuple(logs)
        self.gradients = tuple(index for index, _ in gradients)
        self.changed = tuple(changed)
        self.extras = tuple(name for name, _ in extras)
        entries = [
            Entry(
                variables.trainable[i].path,
                Combine.SUM if weighted else Combine.MEAN,
                dtype,
                tuple(variables.trainable[i].shape),
            )
            for i, dtype in gradients
        ]
        entries += [_state_entry(variables.states[i]) for i in changed]
        entries += metric_entries(variables)
        entries += [Entry(f"log {name}", Combine.MEAN, "float64", shape) for name, shape in extras]
        self.schema = Schema(entries)

    def split(self, totals: Sequence[Array]) -> tuple[list[Array], list[Array], list[Array], Logs]:
        """Totals in schema order as (gradients, states, metrics, logs that are no metric)."""
        first = len(self.gradients)
        second = first + len(self.changed)
        third = len(self.schema.entries) - len(self.extras)
        extras = {
            name: total.reshape(entry.shape)
            for name, total, entry in zip(self.extras, totals[third:], self.schema.entries[third:], strict=True)
        }
        return list(totals[:first]), list(totals[first:second]), list(totals[second:third]), extras


class AbstractEngine(ABC):
    """One backend's hands. Nothing here waits for another process."""

    dirties_seeds = True  # whether a piece leaves its own seeds in the model's variables
    pieces_last = False  # whether a piece's arrays stay as they are for as long as somebody holds them

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)  # the model's life must not depend on its engine's
        self._optimizer = getattr(model, "optimizer", None)
        self.variables = Variables(model)
        model.reset_metrics()
        self._fresh = [np.array(self.read(v)) for v in self.variables.metrics]
        self._metrics: list[Array] = []  # of the epoch so far
        self.reset_metrics()
        self.seeds = Seeds(0, [])
        self.loss_scale: float | None = None  # for pieces, where servers have the optimizer; None: as that says

    @property
    def model(self) -> Any:
        model = self._model()
        assert model is not None, "whoever trains a model holds it"
        return model

    def begin(self, seed: int) -> None:
        """A fit begins, from the state that the model has now."""
        self.seeds = Seeds(seed, [self.read(v) for v in self.variables.seeds])
        self.reset_metrics()

    def state(self) -> list[Array]:
        """Everything that a fit has changed so far: weights, optimizer, metrics of the epoch, random numbers.

        Look at the arrays now or copy them.
        """
        return [*(self.read(v) for v in self._told()), *self._metrics, self.seeds.rows()]

    def set_state(self, arrays: Sequence[Array]) -> None:
        """Goes to where another worker stands, as its `state` told. Diverged if it has another model."""
        told = self._told()
        mine = [(tuple(v.shape), 0) for v in told] + [(m.shape, 1) for m in self._metrics]
        theirs = [(array.shape, int(i >= len(told))) for i, array in enumerate(arrays[:-1])]
        if mine != theirs:
            raise Diverged("the model of this worker has other variables or metrics than the run's")
        self.write(told, arrays[: len(told)])
        self._metrics = [np.array(array) for array in arrays[len(told) : -1]]
        self.seeds = Seeds.of_rows(arrays[-1])
        self.put_seeds_back()

    def _told(self) -> list[Any]:
        """The variables that workers tell each other."""
        variables = self.variables
        every = (*variables.trainable, *variables.states, *variables.optimizer)
        return [variable for variable in every if not is_window(variable)]

    def fits(self, model: Any) -> bool:
        """Whether the model still is what this engine was made for."""
        return getattr(model, "optimizer", None) is self._optimizer and Variables(model).same(self.variables)

    @abstractmethod
    def read(self, variable: Any) -> Array:
        """A variable's value, without a copy where that is possible: look at it now or copy it."""

    @abstractmethod
    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assigns values (which it copies) to variables."""

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Makes these the variables' values, where they lie if that is possible: nobody writes to them again."""
        self.write(variables, values)

    @abstractmethod
    def trace(self, batch: Any) -> StepShape:
        """Traces the cut training step on a batch of this shape. Changes nothing; raises CannotDistribute."""

    @abstractmethod
    def piece(self, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        """Gradients, states, metrics and logs of one piece, in schema order; valid until the next call."""

    def rehearse(self, batch: Any, applies: bool = True) -> None:
        """Compiles what a step needs, on a batch whose values do not matter. Before the state is set.

        `applies`: this worker updates the weights itself.
        """
        self.piece(batch, 0, 1.0)

    @abstractmethod
    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        """Updates weights, optimizer and changed states from the totals, which it reads in place."""

    @abstractmethod
    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        """One test step, on batch number `number`, from fresh metrics: the metric variables' changes, and the logs."""

    @abstractmethod
    def results(self, metrics: Sequence[Array]) -> Logs:
        """The model's metric results for these values of its metric variables, which are assigned to them."""

    def settle(self) -> None:  # noqa: B027 (most backends apply before they return)
        """Waits until the last update has read its totals: only then may they be written again."""

    def release(self) -> None:  # noqa: B027 (most backends keep nothing)
        """Lets go of the totals of a fit that is over."""

    def names_of_metrics(self) -> dict[str, set[int]]:
        """The logs that the model's metrics give, each with the indices of the metric's variables."""
        index = {id(variable): i for i, variable in enumerate(self.variables.metrics)}
        names: dict[str, set[int]] = {}
        for metric in self.model.metrics:
            result = metric.result()
            held = {index[id(variable)] for variable in metric.variables if id(variable) in index}
            names |= dict.fromkeys(result if isinstance(result, dict) else [metric.name], held)
        return names

    def reset_metrics(self) -> None:
        """An epoch begins."""
        self._metrics = [value.copy() for value in self._fresh]

    def add_metrics(self, changes: Sequence[Array]) -> Logs:
        """Adds what a step changed to the metrics so far; returns their results."""
        for total, change in zip(self._metrics, changes, strict=True):
            np.add(total, change.reshape(total.shape), out=total, casting="unsafe")
        return self.results(self._metrics)

    def metric_changes(self) -> list[Array]:
        """What has been added to the metrics in the epoch so far."""
        return [np.array(total - fresh) for total, fresh in zip(self._metrics, self._fresh, strict=True)]

    def put_seeds_back(self) -> None:
        """Writes the seed generators' own states over those that pieces left in the model."""
        self.write(self.variables.seeds, self.seeds.states())

    def test_seeds(self) -> Seeds:
        """Seeds for a round of tests or predictions, from the state that the model has now."""
        return Seeds(0, [self.read(v) for v in self.variables.seeds])

    def refuse_unless_distributable(self) -> None:
        """Raises CannotDistribute for what the weighted mean over pieces would get wrong."""
        for variable in self.variables.trainable:
            if getattr(variable, "overwrite_with_gradient", False):
                raise CannotDistribute(
                    f"{variable.path} is a float8 scale, which is overwritten by its gradient; Shoal does not combine "
                    "those yet. Train in float32, bfloat16, mixed_bfloat16 or mixed_float16."
                )
        for loss in _losses(self.model.loss):
            if getattr(loss, "reduction", None) == "sum":
                raise CannotDistribute(
                    f"{type(loss).__name__}(reduction='sum') adds up over the batch, so a piece's gradient can't be "
                    "weighted by its share of the samples. Use reduction='sum_over_batch_size' and a learning rate "
                    "multiplied by the batch size."
                )


def metric_entries(variables: Variables) -> list[Entry]:
    return [
        Entry(v.path, Combine.SUM, keras.backend.standardize_dtype(v.dtype), tuple(v.shape)) for v in variables.metrics
    ]


def aligned(view: Array) -> bool:
    """Whether a backend may read a view in place."""
    return view.size > 0 and view.ctypes.data % ALIGNMENT == 0


def to_float(value: Any) -> float | Any:
    """A log as callbacks expect it; a copy, since totals are written again."""
    array = np.array(value)
    return float(array) if array.ndim == 0 else array


def extra_logs(logs: Logs, metrics: dict[str, set[int]], changed: set[int]) -> Logs:
    """The logs of a step that are no metric's result.

    A log that only shares its name with a metric which the step never updates is the step's own.
    """
    return {name: value for name, value in logs.items() if not metrics.get(name, set()) & changed}


def _state_entry(variable: Any) -> Entry:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    combine = Combine.MEAN if "float" in dtype else Combine.FIRST
    return Entry(variable.path, combine, dtype, tuple(variable.shape))


def _losses(loss: Any) -> list[Any]:
    if isinstance(loss, dict):
        return [found for part in loss.values() for found in _losses(part)]
    if isinstance(loss, list | tuple):
        return [found for part in loss for found in _losses(part)]
    return [loss]
