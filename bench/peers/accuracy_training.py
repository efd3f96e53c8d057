"""Trains one of two tasks and writes, as JSON, the accuracy on data that it has not seen after every epoch.

accuracy_training.py TASK SEED FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers

import shoal

Data = tuple[np.ndarray, np.ndarray]


def digits(seed: int) -> tuple[keras.Model, Data, Data, int]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    x, y = images[order].reshape(-1, 8, 8, 1).astype("float32") / 16, labels[order]
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    return model, (x[:1500], y[:1500]), (x[1500:], y[1500:]), 30


def synthetic(seed: int) -> tuple[keras.Model, Data, Data, int]:
    """30,000 samples of a noisy function with interactions, which a linear model gets wrong."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(34_000, 40)).astype("float32")
    hidden = np.tanh(x @ rng.normal(size=(40, 30)) / 3) @ rng.normal(size=(30, 8))
    y = (hidden + rng.normal(scale=0.3, size=hidden.shape)).argmax(1)
    model = keras.Sequential(
        [layers.Input((40,)), layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(8)]
    )
    return model, (x[:30_000], y[:30_000]), (x[30_000:], y[30_000:]), 6


task, seed, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
keras.utils.set_random_seed(seed)
model, train, test, epochs = {"digits": digits, "synthetic": synthetic}[task](seed)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.002), loss, metrics=["accuracy"])
history = model.fit(*train, batch_size=64, epochs=epochs, verbose=0, validation_data=test)
if shoal.is_chief():
    out.write_text(json.dumps(history.history["val_accuracy"]))
