"""Optimizers that leave those rows of a table alone, with all that they keep for them, whose gradient is zero.

On servers nothing else is possible: only rows with a gradient travel. So that a model gives the same results on one
machine, the optimizer there does the same for variables that are marked: what it did to other rows is undone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from shoal.hook import keras_private


def mark(variable: Any) -> None:
    """Every optimizer that is built on this variable updates it row by row."""
    variable.is_row_wise = True
    _watch_optimizers()


@functools.cache
def _watch_optimizers() -> None:
    """Once per process, if there is such a variable at all."""
    base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "build" in kind.__dict__)
    original = base.build

    @functools.wraps(original)
    def build(self: Any, variables: Any) -> Any:
        marked = [variable for variable in variables if getattr(variable, "is_row_wise", False)]
        if marked and not self.built:
            self.exclude_from_weight_decay(marked)
            keras_private.wrap_update(self, lambda update: functools.partial(_update, self, update))
        return original(self, variables)

    base.build = build


def _update(
    optimizer: Any, original: Callable[..., Any], gradients: Sequence[Any], variables: Sequence[Any], rate: Any
) -> None:
    marked = [place for place, variable in enumerate(variables) if getattr(variable, "is_row_wise", False)]
    gradients = [_dense(gradient) if place in marked else gradient for place, gradient in enumerate(gradients)]
    undo = [
        (
            ops.any(ops.not_equal(gradients[place], 0), axis=-1, keepdims=True),  # whether each row has a gradient
            [(held, ops.copy(held.value)) for held in (variable, *_kept_for(optimizer, variable))],
        )
        for place, variable in ((place, variables[place]) for place in marked)
    ]
    original(gradients, variables, rate)
    for touched, before in undo:
        for held, value in before:
            held.assign(ops.where(touched, held.value, value))


def _dense(gradient: Any) -> Any:
    """TensorFlow's may be sparse, and name a row several times: an optimizer would square each part by itself."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def _kept_for(optimizer: Any, variable: Any) -> list[Any]:
    """What the optimizer keeps of this shape for a variable: momenta, accumulators."""
    place = keras_private.place_of(optimizer, variable)
    found = [held[place] for held in keras_private.lists_in(optimizer).values() if place < len(held)]
    return [held for held in found if isinstance(held, keras.Variable) and held.shape == variable.shape]
