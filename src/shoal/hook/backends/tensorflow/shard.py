"""A shard's update on TensorFlow: one tf.function, which assigns in place.

Nobody's view of a weight is ever written: while one is held, TensorFlow assigns into new memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.hook.backends.shard_engine import AbstractShardEngine
from shoal.strategies.schema import Array
from shoal.training.engine import aligned

_BORROWED = 1 << 10  # elements


class TensorflowShardEngine(AbstractShardEngine):
    """Keras on TensorFlow."""

    def __init__(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool) -> None:
        super().__init__(variables, optimizer)
        self._update = tf.function(self._apply, jit_compile=jit_compile or None, autograph=False)
        self._from = tf.function(self._apply_to, jit_compile=jit_compile or None, autograph=False)
        self._borrowed: dict[int, Any] = {}  # by where they lie

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value.read_value()).reshape(-1)  # `numpy()` would copy

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value.assign(tf.constant(value.reshape(variable.shape), variable.dtype))

    def update(self, gradients: Sequence[Array]) -> None:
        self._update([_borrow(gradient) for gradient in gradients])

    def update_into(self, values: Sequence[Array], gradients: Sequence[Array], into: Sequence[Array]) -> None:
        results = self._from([self._tensor(value) for value in values], [self._tensor(value) for value in gradients])
        for place, result in zip(into, results, strict=True):
            np.copyto(place, np.asarray(result).reshape(-1))

    def forget(self) -> None:
        self._borrowed.clear()

    def _tensor(self, value: Array) -> Any:
        """To borrow takes longer than to find what was borrowed before. Small ones are copied."""
        if value.size < _BORROWED:
            return tf.constant(value)
        where = value.ctypes.data
        if where not in self._borrowed:
            self._borrowed[where] = _borrow(value)
        return self._borrowed[where]

    def _apply_to(self, values: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Traced: one update from other values."""
        every = [*self._variables, *self._optimizer.variables]
        for variable, value in zip(every, values, strict=True):
            variable.value.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))
        self._apply(gradients)
        return [variable.value.read_value() for variable in every]

    def _apply(self, gradients: Sequence[Any]) -> None:
        """Traced."""
        shaped = [
            tf.cast(tf.reshape(gradient, variable.shape), variable.dtype)
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]
        self._optimizer.apply(shaped, self._variables)


def _borrow(view: Array) -> Any:
    """A tensor that lies where the view lies; a copy where TensorFlow could not read it in place."""
    if aligned(view) and view.flags.writeable:  # numpy lends nothing that is read-only
        return tf.experimental.dlpack.from_dlpack(view.__dlpack__())
    return tf.constant(view)
