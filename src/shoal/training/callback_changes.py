"""What callbacks change in the middle of a fit, where servers have the weights: they must hear of it.

Between two looks nothing but callbacks, and the validation, runs on a worker. What they assign is noticed without a
copy of the weights, by what each backend can tell cheaply (`Engine.token`). Where no callback is the user's own
there is nothing to look at: Keras's do not change weights while a fit goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.training.callbacks import Callbacks
from shoal.training.engine import Engine
from shoal.training.optimizer import TrainedOptimizer

OF_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_OF_EPOCHS = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_test_begin",
    "on_test_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)


class CallbackChanges:
    """Whether callbacks have assigned some of a model's variables, or its optimizer's count."""

    def __init__(
        self, engine: Engine, optimizer: TrainedOptimizer, callbacks: Callbacks, variables: Sequence[Any]
    ) -> None:
        self._engine = engine
        self._variables = list(variables)
        self._count = optimizer.count
        self._in_batches = callbacks.run_users_code(OF_BATCHES)
        self.are_possible = self._in_batches or callbacks.run_users_code(_OF_EPOCHS)
        self._tokens: list[Any] | None = None

    def watch(self, is_batch: bool = False) -> None:
        """Callbacks come next: for each batch (`is_batch`), or for the epoch. Goes on if this was said before."""
        if self._tokens is None and (self._in_batches if is_batch else self.are_possible):
            self._tokens = [self._engine.token(variable) for variable in self._watched]

    def found(self) -> list[Any]:
        """The variables that they have assigned since then."""
        if self._tokens is None:
            return []
        tokens, self._tokens = self._tokens, None
        pairs = zip(self._watched, tokens, strict=True)
        return [variable for variable, token in pairs if self._engine.differs(variable, token)]

    def count_in(self, found: Sequence[Any]) -> int | None:
        """The optimizer's count, if it is among what was found."""
        return int(self._engine.read(self._count)) if any(one is self._count for one in found) else None

    @property
    def _watched(self) -> list[Any]:
        return [*self._variables, self._count]
