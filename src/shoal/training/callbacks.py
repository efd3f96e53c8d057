"""What training asks of a fit's callbacks. The hook has them for Keras's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from shoal.strategies.schema import Array
from shoal.training.logs import Logs


class Callbacks(Protocol):
    """All callbacks of a fit, on one worker."""

    @property
    def stopped_by(self) -> str:
        """The class of the callback that stopped the training on this worker; empty if none did, or nobody knows."""

    def on_train_begin(self) -> None: ...

    def on_train_end(self, logs: Logs | None = None) -> None: ...

    def on_epoch_begin(self, epoch: int) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...

    def on_train_batch_begin(self, batch: int) -> None: ...

    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...

    def first_epoch(self, given: int) -> int:
        """Where the fit begins, after `on_train_begin`: as `fit` was told, or as a callback has restored it."""

    def run_users_code(self, hooks: Collection[str]) -> bool:
        """Whether one of these, by their names, runs code that is not Keras's."""

    def look_after_batches(self) -> bool:
        """Whether one of them may look at weights, or at the optimizer, between two steps."""

    def remember(self) -> tuple[bytes, list[Array]]:
        """What they remember now, as plain data."""

    def restore(self, remembered: bytes, arrays: Sequence[Array]) -> None:
        """Gives them the memory of another worker's, as far as they are of the same kind."""
