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


class TensorflowShardEngine(AbstractShardEngine):
    """Keras on TensorFlow."""

    def __init__(self, variables: Sequence[Any], optimizer: Any, jit_compile: bool) -> None:
        super().__init__(variables, optimizer)
        self._update = tf.function(self._apply, jit_compile=jit_compile or None, autograph=False)

    def read(self, variable: Any) -> Array:
        return np.asarray(variable.value.read_value()).reshape(-1)  # `numpy()` would copy

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.value.assign(tf.constant(value.reshape(variable.shape), variable.dtype))

    def update(self, gradients: Sequence[Array]) -> None:
        self._update([_borrow(gradient) for gradient in gradients])

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
