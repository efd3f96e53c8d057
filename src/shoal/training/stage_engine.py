"""What training asks of a Keras backend for one stage of a pipeline: pass pieces forward and backward, update.

Between its forward and its backward pass a piece's activations stay in the engine. Nothing here waits for another
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    def follow_rate(self, rate: float | None) -> None:
        """The learning rate that callbacks may have set; None where a schedule tells it."""

    # All that the stage holds -----------------------------------------------------------------------

    @abstractmethod
    def open(self) -> None:
        """Makes the stage's own optimizer, in the state that the model's has now."""

    @abstractmethod
    def give(self, with_optimizer: bool) -> tuple[list[int], list[Array]]:
        """The stage's weights and states, and the variables of its optimizer; and of the latter the numbers among the
        variables of the model's optimizer.
        """

    @abstractmethod
    def take(self, numbers: Sequence[int], arrays: Sequence[Array], is_held: bool) -> None:
        """Writes what was given for this stage into the model, and into the model's own optimizer. `is_held`: this
        worker holds the stage, so its weights are there already.
        """


class AbstractStages(ABC):
    """A model that is cut into stages. All of them are known to every worker, which opens those that it holds."""

    engines: Sequence[AbstractStageEngine]
    costs: tuple[float, ...]  # of the stages, relative to each other
    fingerprint: bytes  # equal on workers whose stages are the same
    described: Sequence[str]  # of each stage: from which layer to which, for people

    @abstractmethod
    def make_whole(self) -> None:
        """Gives the model's own optimizer all its variables: what the stages' optimizers have can be written there."""
