"""What a local training asks of its outer optimizer. The hook has one for Keras's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.strategies.schema import Array
from shoal.training.optimizer import Named


class OuterOptimizer(Protocol):
    """The optimizer to which the average move of a round is a gradient. Every worker has one, and all are alike."""

    def apply(self, moves: Sequence[Array], places: range | None = None, counts: bool = True) -> None:
        """Updates the model's weights, which are those that the round began with, in the order of its moved weights.

        `places`: only those of this run of them; None: all. Unless it `counts`, it is no update more for what depends
        on their number.
        """

    def state(self) -> list[Array]:
        """Its variables: look at them now or copy them."""

    def set_state(self, values: Sequence[Array]) -> None:
        """Goes to where another worker's stands, or a checkpoint's."""

    def named(self) -> list[Named]:
        """Path and shape of each of them."""

    def finish(self) -> None:
        """The fit is over: the weights become averages, where it keeps those."""
