"""Makes a model's variables before it is traced, as plain Keras would come to make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.hook import keras_private
from shoal.hook.backends import registry
from shoal.hook.backends.cut import is_keras_own, step_of
from shoal.hook.calls import feeds


def build(model: Any, batch: Any) -> None:
    """Builds layers, metrics and optimizer on an example of a batch.

    On TensorFlow plain Keras leaves that to the first step: a model need not have a `call` there, as long as its
    `train_step` knows what to do.
    """
    _build(model, batch, is_keras_own(model), step_of)


def build_to_test(model: Any, batch: Any) -> None:
    """The same for a model that is going to be tested."""
    _build(model, batch, is_keras_own(model, "test_step"), lambda model: model.test_step)


def _build(model: Any, batch: Any, is_keras_step: bool, step: Callable[[Any], Callable[[Any], Any]]) -> None:
    by_step = registry.current().builder()
    if by_step is None:
        keras_private.build_on(model, batch)
    elif is_keras_step:
        try:
            keras_private.build_on(model, batch)
        except Exception:  # the model's own code, which can't do without values
            by_step(model, batch, step(model))
    elif not _is_built(model):
        by_step(model, batch, step(model))


def _is_built(model: Any) -> bool:
    layers = [layer for layer in keras_private.layers_in(model) if layer is not model]
    return all(part.built for part in (*keras_private.compiled_parts(model), *layers))


def build_by_call(model: Any, batch: Any) -> None:
    """Builds a model that has never been called. Compiled or not: `predict` needs no optimizer."""
    if not model.built:
        model(feeds.inputs_of(batch))
