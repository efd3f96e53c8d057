"""`keras.utils.set_random_seed` without TensorFlow, where that is not the backend.

Keras seeds TensorFlow too wherever it is installed, and imports it for that, which takes as long as the rest of a
worker's start. Here it is seeded when the script imports it, if it does: nothing random happens in it before.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras

from shoal.hook.on_import import when_imported


def install() -> None:
    """From now on. Not for the TensorFlow backend."""
    try:
        from keras.src.utils.module_utils import tensorflow as lazy
    except ImportError:
        return  # another Keras, which does it otherwise
    if not hasattr(lazy, "_available"):
        return  # the same
    seeds: list[int] = []  # that TensorFlow has not heard of

    def seed_tensorflow() -> None:
        if seeds:
            sys.modules["tensorflow"].random.set_seed(seeds.pop())

    original = keras.utils.set_random_seed

    @functools.wraps(original)
    def set_random_seed(seed: int) -> Any:
        if "tensorflow" in sys.modules:
            return original(seed)
        known, lazy._available = lazy._available, False
        try:
            original(seed)
        finally:
            lazy._available = known
        seeds[:] = [seed]
        return None

    keras.utils.set_random_seed = set_random_seed
    when_imported("tensorflow", seed_tensorflow)
