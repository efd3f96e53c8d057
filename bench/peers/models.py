"""The models that contestants train, and the data; for `keras` and for legacy `tf_keras` alike.

Plain SGD: the cheapest update there is, so that the exchange weighs as much as it ever will.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SAMPLES_PER_WORKER = 64  # per step
STEPS_PER_EPOCH = 100
LEARNING_RATE = 0.01
CLASSES = 10
HIDDEN = {"mlp": (2048, 2048, 2048), "large": (1024, 1024, 512)}  # the widths of what has dense layers only
SHAPES = {"mlp": (1024,), "large": (1024,), "conv": (28, 28, 1), "gan": (28, 28, 1), "dense-gan": (784,)}
GANS = ("gan", "dense-gan")


def build(keras: Any, name: str) -> Any:
    """A compiled model: `mlp` has 10.5 M parameters, `large` 2.6 M, for slow links; `conv` has 65 thousand and much
    more arithmetic per byte.

    Of the GANs, which only Keras 3 contestants train, with two optimizers in a step, `gan` has 0.5 M and is
    convolutional, `dense-gan` has 2.7 M and little arithmetic.
    """
    if name in GANS:
        import gan

        return gan.build(name)
    layers = keras.layers
    if name in HIDDEN:
        body = [layers.Dense(width, activation="relu") for width in HIDDEN[name]]
    else:
        body = [
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
        ]
    model = keras.Sequential([layers.Input(SHAPES[name]), *body, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
    return model


def data(name: str, batch: int) -> tuple[np.ndarray, np.ndarray | None]:
    """An epoch of batches of random samples, the same for everyone: speed does not depend on what they show."""
    random = np.random.default_rng(0)
    samples = batch * STEPS_PER_EPOCH
    x = random.standard_normal((samples, *SHAPES[name]), dtype=np.float32)
    return x, None if name in GANS else random.integers(0, CLASSES, samples).astype(np.int32)
