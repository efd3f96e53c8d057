"""What the engines of all backends share.

An engine belongs to one model and is kept from call to call, as long as the model stays what it is.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from shoal.data.columns import Rows
from shoal.data.sources import Spec
from shoal.errors import CannotDistribute, Diverged
from shoal.hook import keras_private
from shoal.hook.backends import leaves
from shoal.observe.counters import SEPARATOR
from shoal.strategies.schema import Array
from shoal.training.engine import Engine, StepShape, Variables, checksum, is_window
from shoal.training.logs import Logs, MetricLogs, MetricResult
from shoal.training.seeds import Seeds


def variables_of(model: Any, optimizers: Sequence[Any] = ()) -> Variables:
    """A model's variables. `optimizers`: those that its step was seen to apply; without any, the model's own."""
    own = getattr(model, "optimizer", None)  # a model that was never compiled has none
    applied = list(optimizers) or ([own] if own is not None else [])
    updated = [v for optimizer in applied for v in updated_by(optimizer)]
    held = {id(v) for v in model.variables}
    # An optimizer may update what is frozen for the others.
    trainable = _once([*model.trainable_variables, *(v for v in updated if id(v) in held)])
    weights = {id(v) for v in trainable}
    others = [v for v in model.non_trainable_variables if id(v) not in weights]
    return Variables(
        optimizers=applied,
        trainable=trainable,
        states=[v for v in others if not is_seed(v)],
        seeds=[v for v in others if is_seed(v)],
        metrics=list(model.metrics_variables),
        optimizer=_once(v for optimizer in applied for v in optimizer.variables),
    )


def updated_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built on."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return keras_private.built_on(inner)


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return variable.path.endswith("seed_generator_state") and tuple(variable.shape) == (2,)


def _is_mean(metric: Any) -> bool:
    return isinstance(metric, keras.metrics.Mean)


def _once(variables: Iterable[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


class AbstractEngine(Engine):
    """What all backends share: the model's variables, the metrics of an epoch, random numbers."""

    is_outdated = False  # whether the model was compiled anew
    dirties_seeds = True  # whether a piece leaves its own seeds in the model's variables
    pieces_last = False  # whether a piece's arrays stay as they are for as long as somebody holds them
    adds: Sequence[bool] = ()  # on JAX, once a step is traced: which of its leaves are variables of metrics

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)  # the model's life must not depend on its engine's
        self._optimizer = getattr(model, "optimizer", None)
        self._applied: list[Any] = []
        self.variables = variables_of(model)
        self.train_logs = MetricLogs(model.metrics, self.variables.metrics, _is_mean)
        self.test_logs = MetricLogs(model.metrics, self.variables.metrics, _is_mean)
        self._of_metrics: dict[str, MetricResult] = {}  # of the logs of a training step
        model.reset_metrics()
        self._fresh = [np.array(self.read(v)) for v in self.variables.metrics]
        self._metrics: list[Array] = []  # of the epoch so far
        self.reset_metrics()
        self.seeds = Seeds(0, [])
        self.builds_optimizers = True  # not where servers have their variables
        self.is_own_step = False  # whether the step is known to be Keras's: it assigns no weight that has a gradient
        self.loss_scale: float | None = None  # for pieces, where servers have the optimizer; None: as that says

    @property
    def model(self) -> Any:
        model = self._model()
        assert model is not None, "whoever trains a model holds it"
        return model

    @property
    def fresh_metrics(self) -> list[Array]:
        """What the metrics' variables hold before anything was counted."""
        return self._fresh

    def begin(self, seed: int) -> None:
        self.seeds = Seeds(seed, [self.read(v) for v in self.variables.seeds])
        self.reset_metrics()

    def state(self) -> list[Array]:
        return [*(self.read(v) for v in self._told()), *self.progress()]

    def set_state(self, arrays: Sequence[Array]) -> None:
        told = self._told()
        if [tuple(v.shape) for v in told] != [array.shape for array in arrays[: len(told)]]:
            raise Diverged("the model of this worker has other variables than the run's")
        self.set_progress(arrays[len(told) :])
        self.write(told, arrays[: len(told)])

    def progress(self) -> list[Array]:
        return [*self._metrics, self.seeds.rows()]

    def set_progress(self, arrays: Sequence[Array]) -> None:
        if [metric.shape for metric in self._metrics] != [array.shape for array in arrays[:-1]]:
            raise Diverged("the model of this worker has other metrics than the run's")
        self._metrics = [np.array(array) for array in arrays[:-1]]
        self.seeds = Seeds.of_rows(arrays[-1])
        self.put_seeds_back()

    def _told(self) -> list[Any]:
        """The variables that workers tell each other."""
        variables = self.variables
        every = (*variables.trainable, *variables.states, *variables.optimizer)
        return [variable for variable in every if not is_window(variable)]

    def fits(self, model: Any) -> bool:
        """Whether the model still is what this engine was made for."""
        now = variables_of(model, self._applied)
        return getattr(model, "optimizer", None) is self._optimizer and now.same(self.variables)

    def know_optimizers(self, applied: Sequence[Any]) -> None:
        """Those that the step was seen to apply."""
        self._applied = _once(applied)
        self.variables = variables_of(self.model, self._applied)

    def count_compilation(self, batch: Any) -> None:
        """A program of a piece is made, for a batch that looks like this."""
        self.compilations += 1
        shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten(batch) if hasattr(leaf, "shape")]
        self.compiled_for = SEPARATOR.join(map(str, shapes))

    def batch(self, spec: Spec, rows: Rows) -> Any:
        return leaves.to_batch(spec, rows)

    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        self.write(variables, values)

    def rehearse(self, batch: Any, applies: bool = True) -> None:
        self.piece(0, batch, 0, 1.0)

    def emptied(self, holder: Any) -> Any:
        """What holds a variable's value gives its memory back. What is kept of it, for `refilled`."""
        return None  # where a value is an array, it goes when nobody has it any more

    def refilled(self, kept: Any, variable: Any) -> Any:
        """What holds the variable's value from now on, to be assigned at once."""
        return kept

    def token(self, variable: Any) -> Any:
        return checksum(self.read(variable))

    def differs(self, variable: Any, token: Any) -> bool:
        return bool(checksum(self.read(variable)) != token)

    @abstractmethod
    def test(self, batch: Any, seeds: Seeds, number: int) -> tuple[Sequence[Array], Logs]:
        """One test step, on batch number `number`, from fresh metrics: the metric variables' changes, and the logs."""

    @abstractmethod
    def results(self, metrics: Sequence[Array], logs: Sequence[tuple[str, MetricResult]]) -> Logs:
        """The results behind these logs, for these values of the metrics' variables, which are assigned to them."""

    def settle(self) -> None:
        pass  # most backends apply before they return

    def release(self) -> None:
        pass  # most backends keep nothing

    @property
    @abstractmethod
    def shape(self) -> StepShape | None:
        """Of the step, as it was traced last."""

    def load_metrics(self) -> None:
        self._metrics = [np.array(self.read(variable)) for variable in self.variables.metrics]

    def reset_metrics(self) -> None:
        self._metrics = [value.copy() for value in self._fresh]

    def add_metrics(self, changes: Sequence[Array], places: Sequence[int] | None = None) -> None:
        for place, change in zip(range(len(self._metrics)) if places is None else places, changes, strict=True):
            total = self._metrics[place]
            np.add(total, change.reshape(total.shape), out=total, casting="unsafe")

    def metric_results(self, logs: Mapping[str, MetricResult] | None = None) -> Logs:
        """The logs that the metrics so far give; those of a training step, if nothing else is said."""
        return self.results(self._metrics, tuple((self._of_metrics if logs is None else logs).items()))

    def know_logs(self, updated: Collection[int]) -> dict[str, MetricResult]:
        """The traced step's logs are known: which are metrics'. `updated`: the metrics' variables that it updates."""
        self._of_metrics = self.train_logs.of_metrics(self.train_logs.sources, updated)
        return self._of_metrics

    def metric_changes(self) -> list[Array]:
        return [np.array(total - fresh) for total, fresh in zip(self._metrics, self._fresh, strict=True)]

    def put_seeds_back(self) -> None:
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
