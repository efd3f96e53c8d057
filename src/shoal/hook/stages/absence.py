"""Variables whose values are with other workers: their memory is given back, and whoever reads one is told why.

A variable of Keras's stays what it is: its path, its shape, its place in the model. It loses its value, and what held
that on this backend loses its memory. Programs that were compiled before still know that holder, so it comes back with
the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from shoal.errors import UsageError
from shoal.hook import keras_private
from shoal.hook.backends.base import AbstractEngine


class AbsentValue:
    """In place of a variable's value."""

    def __init__(self, variable: Any, holder: Any) -> None:
        self.shape, self.dtype = tuple(variable.shape), variable.dtype
        self._path = variable.path
        self._holder = holder

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(self._text)

    __array__ = __jax_array__ = __tf_tensor__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._text)

    @property
    def _text(self) -> str:
        return (
            f"{self._path} is not on this worker: in a pipeline, a worker that trains has the weights and the "
            "optimizer's state of its own stages only. Callbacks see all weights in on_epoch_end and on_train_end; so "
            "do evaluate, predict and save after fit."
        )


def is_absent(variable: Any) -> bool:
    return isinstance(keras_private.value_of(variable), AbsentValue)


def let_go(engine: AbstractEngine, variables: Iterable[Any]) -> None:
    """Gives the memory of these variables back."""
    for variable in variables:
        if not is_absent(variable):
            holder = keras_private.value_of(variable)
            keras_private.set_values([variable], [AbsentValue(variable, engine.emptied(holder))])


def make_room(engine: AbstractEngine, variables: Iterable[Any]) -> None:
    """So that these variables can be assigned again; until then their values are anything."""
    for variable in variables:
        absent = keras_private.value_of(variable)
        if isinstance(absent, AbsentValue):
            keras_private.set_values([variable], [engine.refilled(absent._holder, variable)])
