"""Loops around `train_on_batch`, `test_on_batch` and `predict_on_batch`. For own_steps.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers
from outcomes import told


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.normal(size=(samples, 6)).astype("float32"), rng.integers(0, 3, samples)


def classifier(*more: Any) -> keras.Model:
    keras.utils.set_random_seed(2)
    model = keras.Sequential([layers.Input((6,)), layers.Dense(16, "tanh"), *more, layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def loop(model: keras.Model, between: Callable[[], None]) -> dict[str, Any]:
    x, y = data(64)
    numbers: list[float] = []
    for step in range(8):
        rows = slice(8 * step, 8 * step + (2 if step == 5 else 8))
        weights = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}} if step % 2 else {}
        numbers += model.train_on_batch(x[rows], y[rows], **weights)
        if step == 4:
            between()
    numbers += model.test_on_batch(x[:13], y[:13])
    numbers += [model.test_on_batch(x[:5], y[:5], return_dict=True)["loss"]]
    numbers += np.abs(model.predict_on_batch(x[:7])).sum(axis=0).tolist()
    numbers += np.abs(model.predict_on_batch(x[:1])).sum(axis=0).tolist()
    return told([*model.variables, *model.optimizer.variables], numbers)


def differing() -> list[float]:
    """Batches that nobody has seeded: the chief's are taken."""
    model = classifier()
    rng = np.random.default_rng(os.getpid())
    return [float(model.train_on_batch(rng.normal(size=(8, 6)), rng.integers(0, 3, 8))[0]) for _ in range(3)]


def scenes(between: Callable[[], None], few: bool) -> dict[str, Any]:
    if few:
        return {"on batch": loop(classifier(), between)}
    return {
        "on batch": loop(classifier(), lambda: None),
        "on batch, random": loop(classifier(layers.Dropout(0.3, seed=1)), between),
    }
