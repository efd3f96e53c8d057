"""Trains a model whose metrics show which samples have counted; every worker writes what it knows.

served.py FOLDER EPOCHS [--pause SECONDS] [--until FILE] [--fits N] [--scope STALENESS] [--halt BATCH] [--units N]
          [--slow FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

import shoal

SAMPLES = 200

options = argparse.ArgumentParser()
options.add_argument("folder", type=Path)
options.add_argument("epochs", type=int)
options.add_argument("--pause", type=float, default=0.0)
options.add_argument("--until", type=Path)
options.add_argument("--fits", type=int, default=1)
options.add_argument("--scope", type=float)
options.add_argument("--halt", type=int)  # after so many batches of its own, a worker waits to be killed
options.add_argument("--units", type=int, default=3000)
options.add_argument("--slow", type=Path)  # while it exists, a batch takes three seconds
given = options.parse_args()


class Ledger(keras.metrics.Metric):
    """The sum, over the samples that have counted, of a number that each has: small integers, so it is exact."""

    def __init__(self) -> None:
        super().__init__(name="ledger")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true[:, 1], "float32")))

    def result(self) -> Any:
        return keras.ops.add(self.total, 0.0)


def loss(y_true: Any, y_pred: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y_true[:, 0], y_pred, from_logits=True)


class Pace(keras.callbacks.Callback):
    """Makes steps longer, and ends the training when the test says so."""

    batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(3.0 if given.slow is not None and given.slow.exists() else given.pause)
        Pace.batches += 1
        if Pace.batches == given.halt:
            Path(given.folder, f"halted-{shoal.rank()}").touch()
            time.sleep(600)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if given.until is not None and given.until.exists():
            self.model.stop_training = True


keras.utils.set_random_seed(5)
random = np.random.default_rng(5)
x = random.normal(size=(SAMPLES, 8, 8, 1)).astype("float32")
y = np.stack([random.integers(0, models.CLASSES, SAMPLES), random.permutation(SAMPLES)], axis=1)
scope = shoal.ParameterServer(staleness=given.scope).scope() if given.scope is not None else contextlib.nullcontext()
with scope:
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(given.units, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(200, activation="tanh"),
            keras.layers.Dense(models.CLASSES),
        ]
    )
    model.compile("adam", loss, metrics=[Ledger()])
fit = {"batch_size": 16, "epochs": given.epochs, "verbose": 0, "validation_data": (x[:20], y[:20])}
history = [model.fit(x, y, callbacks=[Pace()], **fit).history for _ in range(given.fits)]
tested = model.evaluate(x, y, verbose=0)
predicted = model.predict(x[:10], verbose=0)
weights = hashlib.sha256()  # without the optimizer's, which workers do not have
for variable in model.weights:
    weights.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
told = {"history": history, "tested": tested, "weights": weights.hexdigest(), "shape": predicted.shape}
if shoal.rank() < shoal.size():  # servers run the script too, and know nothing of what was trained
    Path(given.folder, f"{shoal.rank()}.json").write_text(json.dumps(told))
