"""One engine per model, kept from call to call: its compiled programs are dear."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from shoal.errors import CannotDistribute
from shoal.hook.engine import AbstractEngine

_engines: weakref.WeakKeyDictionary[Any, AbstractEngine] = weakref.WeakKeyDictionary()


def engine_for(model: Any) -> AbstractEngine:
    """The engine of a built model."""
    engine = _engines.get(model)
    if engine is None or not engine.fits(model):
        engine = _make(model)
        _engines[model] = engine
    return engine


def forget(model: Any) -> None:
    """The model is compiled anew: what was traced no longer holds."""
    _engines.pop(model, None)


def _make(model: Any) -> AbstractEngine:
    backend = keras.backend.backend()
    if backend == "jax":
        from shoal.hook.jax_engine import JaxEngine

        return JaxEngine(model)
    if backend == "tensorflow":
        from shoal.hook.tensorflow_engine import TensorflowEngine

        return TensorflowEngine(model)
    if backend == "torch":
        from shoal.hook.torch_engine import TorchEngine

        return TorchEngine(model)
    raise CannotDistribute(f"the Keras backend is {backend!r}; Shoal trains on jax, tensorflow and torch")
