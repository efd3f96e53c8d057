"""What training asks of the model's optimizer. The hook has one for Keras's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from shoal.store.decisions.shards import Parameter
from shoal.training.engine import Variables

Named = tuple[str, tuple[int, ...] | None]  # a variable's path and its shape, where that is known


class TrainedOptimizer(Protocol):
    """The optimizer of a model that is trained."""

    @property
    def own(self) -> Any:
        """Keras's, or the user's."""

    @property
    def count(self) -> Any:
        """The variable in which it counts how often it was given gradients."""

    @property
    def scales_loss(self) -> bool:
        """Whether it multiplies the loss, for float16."""

    @property
    def keeps_averages(self) -> bool:
        """Whether the weights become averages of theirs when a fit is over."""

    def rate(self) -> float | None:
        """The learning rate that callbacks may have set; None where a schedule tells it."""

    def count_updates(self, updates: int) -> None:
        """Adds to the count, on a worker whose optimizer does nothing else: schedules and callbacks may look at it."""

    def remember_loss_scale(self, scale: float) -> None:
        """For the next fit, where its state is on servers."""

    def finish(self) -> None:
        """A fit is over that has updated the worker's own weights: they become averages, where those are kept."""

    # Where servers hold its state -------------------------------------------------------------------

    def parameters(self, variables: Sequence[Any]) -> list[Parameter]:
        """Variables as servers know them, in their order."""

    def refuse_unless_row_wise(self) -> None:
        """Raises CannotDistribute if it can't update some rows of a table alone."""

    # In a checkpoint --------------------------------------------------------------------------------

    def known(self, variables: Variables) -> dict[int, Any]:
        """Its variables that this worker has, by their numbers in a checkpoint: few, where servers hold the rest."""

    def rates(self) -> list[Any]:
        """Its variables that workers set, and servers only follow."""

    def whole(self, trainable: Sequence[Any]) -> list[Named] | None:
        """All its variables, were it built on these; None where only the one server that has it can tell."""

    @property
    def number_of_loss_scale(self) -> int | None:
        """Among its variables in a checkpoint; None if it does not scale the loss."""
