"""What training asks of a Keras backend for one stage of a pipeline: pass pieces forward and backward, update.

Between its forward and its backward pass a piece's activations stay in the engine. Nothing here waits for another
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shoal.strategies.schema import Array
from shoal.strategies.stages import Stage
from shoal.training.engine import PartShape


class AbstractStageEngine(ABC):
    """One backend's hands, for one stage of one model."""

    stage: Stage
    is_last: bool
    shape: (
        PartShape  # of what the backward pass of a piece gives out: gradients, and states that the forward pass changed
    )
    trainable: Sequence[Any]  # the stage's variables with gradients, in the order of the gradients

    @abstractmethod
    def is_float(self, tensor: int) -> bool:
        """Whether a boundary tensor has a gradient."""

    @abstractmethod
    def forward(self, piece: int, batch: Any, weight: float, received: Sequence[Array]) -> list[Array]:
        """From the rows of a piece, and what it receives: what it sends, in the order of `stage.sends`, and the sum of
        the losses so far. Last, in `received` too, is that sum; the last stage sends nothing.
        """

    @abstractmethod
    def metrics(self, piece: int) -> Sequence[Array]:
        """Of the last stage: what the piece changed in the metrics' variables, after its forward pass."""

    @abstractmethod
    def backward(self, piece: int, gradients: Sequence[Array]) -> tuple[list[Array], Sequence[Array]]:
        """From the gradients of what was sent and has one: those of what was received and has one, in the same order,
        and what the piece gives out, in the order of `shape`. The piece's activations are let go of.
        """

    @abstractmethod
    def forget(self) -> None:
        """Lets go of the activations of pieces on their way: the step is done anew."""

    # The update -------------------------------------------------------------------------------------

    @abstractmethod
    def apply(self, gradients: Sequence[Array], states: Sequence[Array]) -> None:
        """Updates the stage's weights from the totals, by its own optimizer."""

    @abstractmethod
    def put_back(self, place: int, value: Array) -> None:
        """Gives one of `trainable` the value that it had: another stage on this worker has updated it already."""

    @abstractmethod
    def follow_rate(self, rate: float | None) -> None:
        """The learning rate that callbacks may have set; None where a schedule tells it."""

    # All that the stage holds -----------------------------------------------------------------------

    @abstractmethod
    def open(self, tensors: Mapping[str, Array] | None = None) -> None:
        """This worker holds the stage from now on: makes its optimizer, in the state that the model's has now. Or with
        these tensors, as another gave them or a checkpoint has them; Diverged if they are of another model.
        """

    @abstractmethod
    def shut(self) -> None:
        """It does so no longer: lets go of the optimizer."""

    @abstractmethod
    def give(self, with_optimizer: bool, apart: bool = False) -> dict[str, Array]:
        """The stage's weights, states and the variables of its optimizer, by their names in a checkpoint. Look at
        them now or copy them.

        `apart`: without what an earlier stage gives too, as tied weights, or the optimizer's count of updates.
        """

    @abstractmethod
    def show(self, tensors: Mapping[str, Array]) -> None:
        """Writes what was given for this stage into the model, and into the model's own optimizer."""

    @abstractmethod
    def needs(self) -> set[tuple[str, int]]:
        """Which tensors of a checkpoint, by kind and number, `open` wants. The stage is open."""

    @abstractmethod
    def finish(self) -> None:
        """The fit is over: the stage's weights become averages, where its optimizer keeps those."""


class AbstractStages(ABC):
    """A model that is cut into stages. All of them are known to every worker, which opens those that it holds."""

    engines: Sequence[AbstractStageEngine]
    costs: tuple[float, ...]  # of the stages, relative to each other
    fingerprint: bytes  # equal on workers whose stages are the same
    described: Sequence[str]  # of each stage: from which layer to which, for people

    @abstractmethod
    def let_go(self, held: Collection[int]) -> None:
        """Gives memory back: the weights of all stages but these, and what the model's own optimizer keeps for each
        weight, which the stages' optimizers have.
        """

    @abstractmethod
    def make_room(self, with_optimizer: bool) -> None:
        """For the weights of all stages, and for the model's own optimizer: what stages give can be written there."""

    @abstractmethod
    def shared(self) -> list[Any]:
        """The variables of the model's own optimizer that every worker has: not those that it keeps for each weight."""

    @abstractmethod
    def unheld(self) -> dict[str, Array]:
        """What a checkpoint has of the optimizer for weights that no stage trains, by name."""
