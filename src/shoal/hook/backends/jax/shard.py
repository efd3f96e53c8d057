"""A shard's update on JAX: one compiled program, which donates weights and optimizer state and so works in place.

Gradients are given to it as numpy arrays: JAX reads them where they lie if they are aligned, and copies them if not,
in less time than it takes to wrap them by hand. Nobody's view of a weight is ever written: while one is held, JAX
updates into new memory instead, which takes several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.hook.backends import registry
from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.hook.keras_private import set_values
from shoal.strategies.schema import Array
from shoal.training.engine import aligned

_BORROWED = 1 << 10  # elements; what is smaller, JAX copies in less time


class JaxShardEngine(AbstractShardEngine):
    """Keras on JAX."""

    def __init__(self, variables: Sequence[Any], optimizer: Any, compiled: bool) -> None:
        super().__init__(variables, optimizer)
        self._update = jax.jit(self._apply, donate_argnums=(0, 1)) if compiled else self._apply
        self._from = jax.jit(self._apply) if compiled else self._apply
        self._borrowed: dict[int, jax.Array] = {}  # by where they lie
        self._own([*variables, *optimizer.variables])

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value).reshape(-1)

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        pairs = zip(variables, values, strict=True)
        set_values(variables, [jnp.asarray(value.reshape(variable.shape), variable.dtype) for variable, value in pairs])
        self._own(variables)

    def update(self, gradients: Sequence[Array]) -> None:
        optimizer = self._optimizer.variables
        values = self._update([v.value for v in self._variables], [v.value for v in optimizer], list(gradients))
        set_values([*self._variables, *optimizer], jax.block_until_ready(values))

    def updated(self, values: Sequence[Array], gradients: Sequence[Array]) -> list[Array]:
        every = [*self._variables, *self._optimizer.variables]
        shaped = [value.reshape(variable.shape) for variable, value in zip(every, values, strict=True)]
        count = len(self._variables)
        return [np.asarray(value).reshape(-1) for value in self._from(shaped[:count], shaped[count:], list(gradients))]

    def update_into(self, values: Sequence[Array], gradients: Sequence[Array], into: Sequence[Array]) -> None:
        every = [*self._variables, *self._optimizer.variables]
        given = [self._borrow(value, variable.shape) for value, variable in zip(values, every, strict=True)]
        shaped = [self._borrow(gradient, v.shape) for gradient, v in zip(gradients, self._variables, strict=True)]
        count = len(self._variables)
        for place, value in zip(into, self._from(given[:count], given[count:], shaped), strict=True):
            np.copyto(place, np.asarray(value).reshape(-1))

    def forget(self) -> None:
        self._borrowed.clear()

    def _borrow(self, value: Array, shape: Any) -> Any:
        """An array that lies where the value lies: to make one takes longer than to find it. Small ones are copied."""
        if value.size < _BORROWED or not aligned(value):
            return value.reshape(shape)
        where = value.ctypes.data
        if where not in self._borrowed:
            self._borrowed[where] = jnp.from_dlpack(value)
        return self._borrowed[where]

    def finalize(self) -> None:
        super().finalize()
        self._own(self._variables)  # which now lie where their averages lie

    def _apply(self, variables: Any, optimizer: Any, gradients: Any) -> list[Any]:
        """Traced."""
        shaped = [
            gradient.reshape(variable.shape).astype(variable.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        variables, optimizer = self._optimizer.stateless_apply(optimizer, shaped, variables)
        return [*variables, *optimizer]

    def _own(self, variables: Sequence[Any]) -> None:
        """Moves values to memory of their own: what lies in numpy's, or is shared by two variables, can't be donated.

        They are tied to the device, as an update's results are: the program is compiled once.
        """
        device = registry.current().device()
        copies = [jax.device_put(jnp.array(variable.value, copy=True), device) for variable in variables]
        set_values(variables, jax.block_until_ready(copies))
