"""Keras without TensorFlow, where that is not the backend and the script has not imported it.

Wherever TensorFlow is installed Keras imports it, which takes as long as the rest of a worker's start:

    to seed it       here it is seeded when the script imports it, if it does: nothing random happens in it before
    to save a model  or to note in a checkpoint how it is built: something in it might be TensorFlow's. Not if nobody
                     has imported that.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras

from shoal.hook.keras_private import LazyTensorflow
from shoal.hook.patching.on_import import when_imported


def install() -> None:
    """From now on. Not for the TensorFlow backend."""
    lazy = LazyTensorflow.find()
    if lazy is not None:
        _seed_late(lazy)
        lazy.replace_in_saving(_IfImported)


class _IfImported:
    """Stands for TensorFlow where objects are looked at that might be its own."""

    def __init__(self, lazy: Any) -> None:
        self._lazy = lazy

    @property
    def available(self) -> bool:
        return "tensorflow" in sys.modules and bool(self._lazy.available)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lazy, name)


def _seed_late(lazy: LazyTensorflow) -> None:
    seeds: list[int] = []  # that TensorFlow has not heard of

    def seed_tensorflow() -> None:
        if seeds:
            sys.modules["tensorflow"].random.set_seed(seeds.pop())

    original = keras.utils.set_random_seed

    @functools.wraps(original)
    def set_random_seed(seed: int) -> Any:
        if "tensorflow" in sys.modules:
            return original(seed)
        with lazy.hidden():
            original(seed)
        seeds[:] = [seed]
        return None

    keras.utils.set_random_seed = set_random_seed
    when_imported("tensorflow", seed_tensorflow)
