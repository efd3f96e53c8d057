"""What Shoal asks of a Keras backend: compute a piece, apply an update, test a batch.

An engine belongs to one model and is kept from call to call, as long as the model stays what it is. Between two steps
the model's variables always hold the committed state, so that callbacks may look at them.

A step has a part for every time that it applies an optimizer: up to there its pieces are computed, then all pieces'
gradients are summed and the update is applied, then the next part goes on with the new weights. Keras's own step, and
most others, have one. What a step gives out besides gradients (states that it assigns, metrics, logs) comes with the
first part that knows it; a last part without gradients is needed where that depends on the last update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.data.columns import Rows
from shoal.data.sources import Spec
from shoal.errors import CannotDistribute
from shoal.strategies.schema import ALIGNMENT, Array, Combine, Entry, Schema
from shoal.training.logs import Logs
from shoal.training.seeds import Seeds


class Variables(NamedTuple):
    """A model's variables, sorted by what a step does with them."""

    optimizers: list[Any]  # those that the step applies, as far as that is known
    trainable: list[Any]
    states: list[Any]  # moving statistics, counters, frozen weights
    seeds: list[Any]  # of random numbers
    metrics: list[Any]
    optimizer: list[Any]  # all optimizers'

    @property
    def weights(self) -> list[Any]:
        """What a step may change, but for the optimizers' own: gradients come first, in the order of `trainable`."""
        return [*self.trainable, *self.states]

    def same(self, other: Variables) -> bool:
        return all([id(v) for v in mine] == [id(v) for v in theirs] for mine, theirs in zip(self, other, strict=True))


def is_window(variable: Any) -> bool:
    """Whether a variable only shows some rows of a table that is on servers: nothing that others would have to know."""
    return getattr(variable, "is_window", False)


class PartShape:
    """What one part of a step gives out, and in which order: all that an exchange carries."""

    def __init__(
        self,
        variables: Variables,
        gradients: Sequence[tuple[int, str]],  # index of the weight, dtype of its gradient
        changed: Sequence[int],  # indices of the weights and states that the step assigns itself
        metrics: Sequence[int],  # indices of the metrics' variables
        extras: Sequence[tuple[str, tuple[int, ...]]],  # logs that are no metric: name, shape
        weighted: bool = False,  # whether the step itself weights its gradients by the piece's share of the samples
        averaged: Collection[int] = (),  # indices of the metrics' variables that count steps, not rows
    ) -> None:
        for name, shape in extras:
            if None in shape:
                raise CannotDistribute(
                    f"the step returns {name!r} with one value per sample; expected a mean over them, or a metric."
                )
        self.gradients = tuple(index for index, _ in gradients)
        self.changed = tuple(changed)
        self.metrics = tuple(metrics)
        self.extras = tuple(name for name, _ in extras)
        entries = [
            Entry(
                variables.weights[i].path,
                Combine.SUM if weighted else Combine.MEAN,
                dtype,
                tuple(variables.weights[i].shape),
            )
            for i, dtype in gradients
        ]
        entries += [_state_entry(variables.weights[i]) for i in changed]
        entries += [metric_entry(variables.metrics[i], Combine.MEAN if i in averaged else Combine.SUM) for i in metrics]
        entries += [Entry(f"log {name}", Combine.MEAN, "float64", shape) for name, shape in extras]
        self.schema = Schema(entries, len(self.gradients))

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


class StepShape(NamedTuple):
    """A training step, as found when it was traced."""

    parts: tuple[PartShape, ...]
    logs: tuple[str, ...]  # names of all logs, in the order of `train_step`
    derived: tuple[int, ...] = ()  # weights and states that it computes from updated ones, and nobody exchanges

    @property
    def only(self) -> PartShape:
        """The one part of a step that servers can update. Raises CannotDistribute if it has others."""
        if len(self.parts) > 1:
            raise CannotDistribute(
                "this model's `train_step` applies optimizers more than once, or goes on with the updated weights. "
                "Parameter servers can't do that: train it with --strategy allreduce."
            )
        return self.parts[0]


class Engine(ABC):
    """One backend's hands, for one model. Nothing here waits for another process."""

    variables: Variables
    seeds: Seeds  # of the next step
    is_outdated: bool  # whether the model was compiled anew
    dirties_seeds: bool  # whether a piece leaves its own seeds in the model's variables
    pieces_last: bool  # whether a piece's arrays stay as they are for as long as somebody holds them
    loss_scale: float | None  # for pieces, where servers have the optimizer; None: as that says
    compilations: int = 0  # programs of a piece that were made so far; always 0 where none are
    compiled_for: str = ""  # the shapes of the batch that the last one was made for

    # A step -----------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, seed: int) -> None:
        """A fit begins, from the state that the model has now."""

    @abstractmethod
    def batch(self, spec: Spec, rows: Rows) -> Any:
        """Rows in the nesting, and as the tensors, that the model's steps expect."""

    @abstractmethod
    def trace(self, batch: Any) -> StepShape:
        """Traces the cut training step on a batch of this shape. Changes nothing; raises CannotDistribute."""

    @abstractmethod
    def rehearse(self, batch: Any, applies: bool = True) -> None:
        """Compiles what a step needs, on a batch whose values do not matter. Before the state is set.

        `applies`: this worker updates the weights itself.
        """

    @abstractmethod
    def piece(self, part: int, batch: Any, piece: int, weight: float) -> Sequence[Array]:
        """What a part of the step gives out for one piece, in schema order; valid until the next call.

        Parts come in their order, each applied before the next. A piece may be asked for again, or for the first time
        in a later part: others have computed the parts before it.
        """

    @abstractmethod
    def apply(self, part: int, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        """Updates weights and optimizers from the totals of a part, which it reads in place.

        When the last part is applied, the model's variables are those after the step.
        """

    @abstractmethod
    def settle(self) -> None:
        """Waits until the last update has read its totals: only then may they be written again."""

    @abstractmethod
    def release(self) -> None:
        """Lets go of the totals of a fit that is over."""

    @abstractmethod
    def put_seeds_back(self) -> None:
        """Writes the seed generators' own states over those that pieces left in the model."""

    # What a fit has changed -------------------------------------------------------------------------

    @abstractmethod
    def state(self) -> list[Array]:
        """Everything that a fit has changed so far: weights, optimizer, metrics of the epoch, random numbers.

        Look at the arrays now or copy them.
        """

    @abstractmethod
    def set_state(self, arrays: Sequence[Array]) -> None:
        """Goes to where another worker stands, as its `state` told. Diverged if it has another model."""

    @abstractmethod
    def progress(self) -> list[Array]:
        """The last part of `state`: the metrics of the epoch, and random numbers."""

    @abstractmethod
    def set_progress(self, arrays: Sequence[Array]) -> None:
        """As `set_state`, with what `progress` told: weights and optimizer stay as they are."""

    @abstractmethod
    def read(self, variable: Any) -> Array:
        """A variable's value, without a copy where that is possible: look at it now or copy it."""

    @abstractmethod
    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assigns values (which it copies) to variables."""

    @abstractmethod
    def adopt(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Makes these the variables' values, where they lie if that is possible: nobody writes to them again."""

    @abstractmethod
    def token(self, variable: Any) -> Any:
        """For `differs`. It may keep memory alive: let go of it soon."""

    @abstractmethod
    def differs(self, variable: Any, token: Any) -> bool:
        """Whether a variable has another value than when the token was taken."""

    # The metrics of an epoch ------------------------------------------------------------------------

    @abstractmethod
    def load_metrics(self) -> None:
        """Goes on from what the metrics' variables hold: the script may have reset them."""

    @abstractmethod
    def reset_metrics(self) -> None:
        """An epoch begins."""

    @abstractmethod
    def add_metrics(self, changes: Sequence[Array], places: Sequence[int] | None = None) -> None:
        """Adds what a step changed to the metrics so far; `places`: which of them, if not all."""

    @abstractmethod
    def metric_changes(self) -> list[Array]:
        """What has been added to the metrics in the epoch so far."""

    @abstractmethod
    def metric_results(self) -> Logs:
        """The logs of a training step that the metrics so far give."""


def metric_entry(variable: Any, combine: Combine = Combine.SUM) -> Entry:
    dtype = str(variable.dtype)
    return Entry(variable.path, combine, dtype, tuple(variable.shape))


def checksum(array: Array) -> tuple[int, int, bytes]:
    """Changes when any bit of the array does; not with the order of its words. As fast as reading it once."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = data[: data.size // 8 * 8].view(np.uint64)
    total, xor = np.add.reduce(words, dtype=np.uint64), np.bitwise_xor.reduce(words, dtype=np.uint64)
    return int(total), int(xor), data[words.nbytes :].tobytes()


def aligned(view: Array) -> bool:
    """Whether a backend may read a view in place."""
    return view.size > 0 and view.ctypes.data % ALIGNMENT == 0


def to_float(value: Any) -> float | Any:
    """A log as callbacks expect it; a copy, since totals are written again."""
    array = np.array(value)
    return float(array) if array.ndim == 0 else array


def _state_entry(variable: Any) -> Entry:
    dtype = str(variable.dtype)
    combine = Combine.MEAN if "float" in dtype else Combine.FIRST
    return Entry(variable.path, combine, dtype, tuple(variable.shape))
