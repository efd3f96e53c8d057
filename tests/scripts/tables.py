"""Trains a wide and deep model with tables several times, another that has loaded its weights, and one that shares a
table with it, by turns.

Workers write what came of it. Without servers it is plain Keras.

tables.py FOLDER OPTIMIZER [--pause SECONDS] [--one-fit]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import shoal
from shoal.layers import ShardedEmbedding

SAMPLES, ROWS = 600, 40_000

options = argparse.ArgumentParser()
options.add_argument("folder", type=Path)
options.add_argument("optimizer")
options.add_argument("--pause", type=float, default=0.0)
options.add_argument("--one-fit", action="store_true")
given = options.parse_args()

keras.utils.set_random_seed(3)
random = np.random.default_rng(3)
users = random.zipf(1.3, SAMPLES) % ROWS  # some often, most once
items = random.integers(0, ROWS, (SAMPLES, 3))
y = ((users + items[:, 0]) % 2).astype("float32")


def new_model() -> Any:
    user, item = keras.Input((), dtype="int32"), keras.Input((3,), dtype="int32")
    table = ShardedEmbedding(ROWS, 8, name="table")  # used twice; large enough for several parts
    wide = ShardedEmbedding(ROWS, 1, embeddings_initializer="zeros", name="wide")
    deep = keras.layers.Concatenate()([table(user), keras.layers.Flatten()(table(item))])
    deep = keras.layers.Dense(1)(keras.layers.Dense(16, activation="relu")(deep))
    model = keras.Model([user, item], keras.layers.Add()([deep, wide(user)]))
    compile_anew(model)
    return model


def compile_anew(model: Any) -> None:
    """With an optimizer that knows nothing yet."""
    optimizers = {
        "adam": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 10, 0.9)),
        "ftrl": keras.optimizers.Ftrl(0.5),
        "adagrad": keras.optimizers.Adagrad(0.1),
    }
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizers[given.optimizer], loss, metrics=["accuracy"])


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(given.pause)


class Fail(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise ValueError("not good enough")


def fit(model: Any, epochs: int, x: Any = (users, items), *more: Any) -> dict[str, list[float]]:
    held_out = ([ids[:90] for ids in x], y[:90])
    settings = {"batch_size": 48, "shuffle": False, "verbose": 0, "validation_data": held_out}  # the last is smaller
    return model.fit(list(x), y, epochs=epochs, callbacks=[Pace(), *more], **settings).history


def look(model: Any) -> Any:
    return model.predict([users[:50], items[:50]], verbose=0)


def tell() -> None:
    if shoal.rank() < shoal.size():  # not on servers
        told = {"history": history, "tested": tested, "predicted": predicted.tolist(), "rows": rows.tolist()}
        told |= {"looked": [one.tolist() for one in looked]}
        Path(given.folder, f"{shoal.rank()}.json").write_text(json.dumps(told))


model = new_model()
history = [fit(model, 2)]
tested = model.evaluate([users, items], y, batch_size=128, verbose=0)
predicted = model.predict([users[:100], items[:100]], batch_size=100, verbose=0)
user = keras.Input((), dtype="int32")
tower = keras.Model(user, model.get_layer("table")(user))
rows = tower.predict(users[:100], verbose=0)  # a part of a trained model
looked: list[Any] = []  # at tables that nobody has trained, or not in the last fit
if given.one_fit:
    model.save(given.folder / "model.keras")
    loaded = keras.saving.load_model(given.folder / "model.keras")
    keras.utils.set_random_seed(4)  # a fit draws other random numbers than plain Keras
    looked += [look(loaded), look(new_model()), look(model)]
    tested += loaded.evaluate([users, items], y, verbose=0)
    compile_anew(loaded)
    history.append(fit(loaded, 1))  # from the file's rows on
    with contextlib.suppress(ValueError):
        fit(model, 1, (users, items), Fail())
    looked += [look(model), look(loaded)]
    tell()
    sys.exit()
model.save_weights(given.folder / "first.weights.h5")
other = new_model()
other.load_weights(given.folder / "first.weights.h5")
history += [fit(model, 1), fit(other, 1), fit(model, 1)]  # by turns: each goes on with its own rows
other.load_weights(given.folder / "first.weights.h5")
compile_anew(other)  # in plain Keras the file has what the optimizer knew, too
history.append(fit(other, 1))  # back to the file's rows
compile_anew(model)
history.append(fit(model, 1))  # on with its rows
begun = keras.initializers.Constant(0.3)  # not by chance: a fit draws other random numbers than plain Keras
shares = keras.Model([user], keras.layers.Dense(1, kernel_initializer=begun)(tower(user)))
compile_anew(shares)
history.append(fit(shares, 1, x=(users,)))
compile_anew(model)
history.append(fit(model, 1))  # each goes on with the other's rows
model.save(given.folder / "model.keras")
tell()
