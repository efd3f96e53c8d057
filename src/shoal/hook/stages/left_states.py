"""Optimizers whose state is gone, since it was divided among workers and none of them had room for all of it."""

from __future__ import annotations

import weakref
from typing import Any

from shoal.errors import CannotDistribute


class LeftStates:
    """As long as the script has the optimizer."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, optimizer: Any) -> None:
        self._optimizers.add(optimizer)

    def refuse(self, optimizer: Any) -> None:
        """Another fit would begin with an optimizer that has forgotten the first, and nobody would notice."""
        if optimizer in self._optimizers:
            raise CannotDistribute(
                "this model was trained with Pipeline(lean=True), which leaves no worker with the optimizer's state "
                "when fit ends. To train on: compile the model again, with a new optimizer; or resume the run from its "
                "last checkpoint, with more epochs; or train without lean=True."
            )
