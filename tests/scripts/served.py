"""Trains a model whose metrics show which samples have counted; every worker writes what it knows.

served.py FOLDER EPOCHS [--pause SECONDS] [--until FILE] [--fits N] [--scope STALENESS] [--averaged arrays|stream]
          [--crawl BATCH] [--units N] [--slow FILE]

`--averaged`: trains another one after it, in float16 with a loss that is scaled too much at first, with averages of the
weights, and with accumulated gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import time
from functools import partial
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
options.add_argument("--averaged", choices=("arrays", "stream"))
options.add_argument("--again", action="store_true")
options.add_argument("--crawl", type=int)  # after so many batches of its own, a worker is slow until it is killed
options.add_argument("--units", type=int, default=3000)
options.add_argument("--slow", type=Path)  # while it exists, a batch takes three seconds
given = options.parse_args()


class Ledger(keras.metrics.Metric):
    """The sum, over the samples that have counted, of a number that each has: small integers, so it is exact."""

    def __init__(self, name: str = "ledger") -> None:
        super().__init__(name=name)
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
        if given.crawl is not None and Pace.batches >= given.crawl:
            Path(given.folder, f"crawls-{shoal.rank()}").touch()
            time.sleep(3.0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if given.until is not None and given.until.exists():
            self.model.stop_training = True


def make_model() -> keras.Model:
    return keras.Sequential(
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


def digest(model: keras.Model) -> str:
    """Of the weights; not of the optimizer's, which workers do not have."""
    weights = hashlib.sha256()
    for variable in model.weights:
        weights.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    return weights.hexdigest()


class Before(keras.callbacks.Callback):
    """The weights before they become averages."""

    weights = ""  # on a server, where no callback is called

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights = digest(self.model)


def averaged() -> dict[str, Any]:
    keras.config.set_dtype_policy("mixed_float16")
    model = make_model()
    averages = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 7}  # not just before the end
    optimizer = keras.optimizers.Adam(0.0005, gradient_accumulation_steps=2, **averages)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer, 2.0**18, 8), loss, metrics=[Ledger()])
    keras.config.set_dtype_policy("float32")
    before = Before()
    if given.averaged == "stream":
        data = ((x[at : at + 16], y[at : at + 16]) for _ in range(3) for at in range(0, SAMPLES, 16))
        fit = partial(model.fit, data, steps_per_epoch=13, verbose=0, callbacks=[before, Pace()])
    else:
        fit = partial(model.fit, x, y, batch_size=16, verbose=0, callbacks=[before, Pace()])
    history = [fit(epochs=2).history]
    model.compile(model.optimizer, loss, metrics=[Ledger()])  # it goes on, with the scale that it has found
    history.append(fit(epochs=1).history)
    return {
        "history": history,
        "weights": digest(model),
        "before": before.weights,
        "iterations": int(optimizer.variables[0]),  # all of which accumulate, and every second updates
    }


def again() -> dict[str, Any]:
    """On with the same optimizer and one more metric, between fits in which there is nothing to do."""
    nothing = [model.fit(x, y, epochs=2, initial_epoch=2, verbose=0).history]
    model.compile(model.optimizer, loss, metrics=[Ledger(), Ledger("again")])
    nothing.append(model.fit(x, y, epochs=0, verbose=0).history)
    history = model.fit(x, y, batch_size=16, verbose=0).history
    return {"nothing": nothing, "history": history, "weights": digest(model)}


keras.utils.set_random_seed(5)
random = np.random.default_rng(5)
x = random.normal(size=(SAMPLES, 8, 8, 1)).astype("float32")
y = np.stack([random.integers(0, models.CLASSES, SAMPLES), random.permutation(SAMPLES)], axis=1)
scope = shoal.ParameterServer(staleness=given.scope).scope() if given.scope is not None else contextlib.nullcontext()
with scope:
    model = make_model()
    model.compile("adam", loss, metrics=[Ledger()])
fit = {"batch_size": 16, "epochs": given.epochs, "verbose": 0, "validation_data": (x[:20], y[:20])}
history = [model.fit(x, y, callbacks=[Pace()], **fit).history for _ in range(given.fits)]
tested = model.evaluate(x, y, verbose=0)
predicted = model.predict(x[:10], verbose=0)
told = {"history": history, "tested": tested, "weights": digest(model), "shape": predicted.shape}
if given.averaged is not None:
    told["averaged"] = averaged()
if given.again:
    told["again"] = again()
if shoal.rank() < shoal.size():  # servers run the script too, and know nothing of what was trained
    Path(given.folder, f"{shoal.rank()}.json").write_text(json.dumps(told))
