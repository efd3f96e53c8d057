"""The package `tf_keras` is Keras 2, which TensorFlow uses under TF_USE_LEGACY_KERAS=1. Shoal trains Keras 3.

Importing it is no mistake: other packages do, and never use it. Training with it is.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from shoal.errors import CannotDistribute
from shoal.hook.patching.script_line import at_script_line


def refuse_training(tf_keras: ModuleType) -> None:
    """From now on its models and optimizers say that they would train on each worker by itself."""
    for name in ("fit", "fit_generator", "train_on_batch"):
        _refuse(tf_keras.Model, name)
    _refuse(tf_keras.optimizers.Optimizer, "apply_gradients")


def _refuse(cls: Any, name: str) -> None:
    if not hasattr(cls, name):
        return

    def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise CannotDistribute(
            f"{at_script_line()}{name}() of tf_keras, which is Keras 2: Shoal trains models of Keras 3. Leave "
            "TF_USE_LEGACY_KERAS unset and import keras, or run this script with one worker."
        )

    setattr(cls, name, refused)
