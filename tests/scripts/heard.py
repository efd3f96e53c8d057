"""Trains with callbacks that change the model in the middle of a fit, and tells what came of it.

heard.py FOLDER [--alone] [--pause SECONDS] SCENE…

`--alone`: only one worker's callbacks change something. Without `shoal run` it is plain Keras.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from keras import layers, optimizers

import shoal

SCENES: dict[str, Callable[[], Any]] = {}
SAMPLES = 96

options = argparse.ArgumentParser()
options.add_argument("folder", type=Path)
options.add_argument("scenes", nargs="+")
options.add_argument("--alone", action="store_true")
options.add_argument("--pause", type=float, default=0.0)
given = options.parse_args()


def scene(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENES[function.__name__] = function
    return function


class On(keras.callbacks.Callback):
    """Does something in a hook, at a number of it or always."""

    def __init__(self, hook: str, act: Callable[[Any], Any], number: int | None = None) -> None:
        super().__init__()

        def called(*about: Any, **_: Any) -> None:
            if number in (None, about[0]) and not (given.alone and shoal.rank() == 0):
                act(self.model)

        setattr(self, hook, called)


def make_model(optimizer: Any, *more: Any) -> Any:
    keras.utils.set_random_seed(2)
    first, last = layers.Dense(16, activation="tanh", name="first"), layers.Dense(models.CLASSES)
    model = keras.Sequential([layers.Input((8, 8, 1)), layers.Flatten(), first, *more, last])
    return models.compile_for_classes(model, optimizer)


def train(*callbacks: Any, optimizer: Any = None, more: Sequence[Any] = ()) -> dict[str, Any]:
    model = make_model(optimizer or optimizers.Adam(0.02), *more)
    pace = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(given.pause))
    x, y = models.images(SAMPLES)
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(x[:32], y[:32]),
        callbacks=[*callbacks, *([pace] if given.pause else ())],
    ).history
    weights = [np.asarray(weight, np.float64).reshape(-1).tolist() for weight in model.get_weights()]
    return {"history": {name: history[name] for name in ("loss", "val_loss")}, "weights": weights}


def reset(model: Any) -> None:
    model.set_weights(make_model("sgd").get_weights())


def prune(model: Any) -> None:
    kernel = model.get_layer("first").kernel
    value = keras.ops.convert_to_numpy(kernel)
    kernel.assign(np.where(np.abs(value) < 0.1, 0.0, value))


def shift_statistics(model: Any) -> None:
    mean = model.get_layer("normal").moving_mean
    mean.assign(mean + 0.5)


def clip(model: Any) -> None:
    for variable in model.trainable_variables:
        variable.assign(keras.ops.clip(variable, -0.2, 0.2))


def clip_beside_keras(model: Any) -> None:
    """As those do who know the backend."""
    for variable in model.trainable_variables:
        match keras.backend.backend():
            case "torch":
                variable.value.data.clamp_(-0.2, 0.2)
            case "tensorflow":
                import tensorflow as tf

                variable.value.assign(tf.clip_by_value(variable.value, -0.2, 0.2))
            case _:
                clip(model)


def begin_schedule_anew(model: Any) -> None:
    model.optimizer.iterations.assign(0)


def slow_down(model: Any) -> None:
    model.optimizer.learning_rate = 0.001


@scene
def nothing() -> dict[str, Any]:
    return train(On("on_epoch_end", lambda model: model.get_weights()))


@scene
def reset_at_the_end_of_an_epoch() -> dict[str, Any]:
    return train(On("on_epoch_end", reset, 0))


@scene
def prune_when_an_epoch_begins() -> dict[str, Any]:
    return train(On("on_epoch_begin", prune))


@scene
def statistics() -> dict[str, Any]:
    """Which are of the whole batch on one machine, and of pieces elsewhere."""
    return train(On("on_epoch_end", shift_statistics), more=[layers.BatchNormalization(name="normal")])


@scene
def after_validation() -> dict[str, Any]:
    return train(On("on_test_end", clip))


@scene
def beside_keras() -> dict[str, Any]:
    return train(On("on_epoch_end", clip_beside_keras))


@scene
def a_schedule_that_begins_anew() -> dict[str, Any]:
    decay = optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)
    return train(On("on_epoch_end", begin_schedule_anew), optimizer=optimizers.Adam(decay))


@scene
def a_learning_rate() -> dict[str, Any]:
    return train(On("on_epoch_end", slow_down, 1))


@scene
def clip_after_every_batch() -> dict[str, Any]:
    return train(On("on_train_batch_end", clip))


@scene
def beside_keras_after_every_batch() -> dict[str, Any]:
    return train(On("on_train_batch_end", clip_beside_keras))


@scene
def before_a_batch() -> dict[str, Any]:
    return train(On("on_train_batch_begin", reset, 4))


@scene
def compiles_anew() -> dict[str, Any]:
    return train(On("on_epoch_end", lambda model: model.compile("sgd", "mse"), 0))


told = {name: SCENES[name]() for name in given.scenes}
if shoal.rank() < shoal.size():  # not on servers
    Path(given.folder, f"{shoal.rank()}.json").write_text(json.dumps(told))
