"""What a shard asks of a Keras backend: read and write its variables, and let their optimizer update them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.strategies.schema import Array


class AbstractShardEngine(ABC):
    """One backend's hands on variables that belong to nobody else, and on the optimizer that was built on them."""

    def __init__(self, variables: Sequence[Any], optimizer: Any) -> None:
        self._variables = list(variables)
        self._optimizer = optimizer

    @abstractmethod
    def read(self, variable: Any) -> Array:
        """A variable's value, flat, where it lies if that is possible: look at it before it is written again."""

    @abstractmethod
    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assigns values, which are flat and which it copies, to variables."""

    @abstractmethod
    def update(self, gradients: Sequence[Array]) -> None:
        """One update from flat gradients, one per variable, which are no longer needed when it returns."""

    def updated(self, values: Sequence[Array], gradients: Sequence[Array]) -> list[Array]:
        """One update from other values, of the variables and then of the optimizer's: what they are then, all flat.

        Look at them now. What the variables have by then does not matter.
        """
        every = [*self._variables, *self._optimizer.variables]
        self.write(every, values)
        self.update(gradients)
        return [self.read(variable) for variable in every]

    def update_into(self, values: Sequence[Array], gradients: Sequence[Array], into: Sequence[Array]) -> None:
        """As `updated`, into arrays of the caller's. What is given may be remembered by where it lies, until `forget`:
        its contents may change between two calls, but the memory must last.
        """
        for place, value in zip(into, self.updated(values, gradients), strict=True):
            np.copyto(place, value)

    def forget(self) -> None:  # noqa: B027 (most remember nothing)
        """Lets go of the memory that was given to `update_into`."""

    def finalize(self) -> None:
        """What the optimizer does to the weights after the last update."""
        self._optimizer.finalize_variable_values(self._variables)
