"""Trains one model after another, as a tuner does: a fit that raises is caught, and the next one is begun.

caught.py FOLDER SCENE…

Every process writes, for each scene, the error that it has caught and the losses of the fit after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models

import shoal

SCENES: dict[str, Callable[[], Any]] = {}
SAMPLES = 96
BAD = 1  # the rank of the worker that is alone with its error


class TooBad(Exception):
    """One that nobody but this script knows, and that can't be made from a text alone."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(step, why)
        self.step = step


def scene(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENES[function.__name__] = function
    return function


class Raise(keras.callbacks.Callback):
    """Raises an error when it comes to a place."""

    def __init__(self, error: Exception, hook: str, number: int | None = None, rank: int | None = None) -> None:
        super().__init__()

        def act(*about: Any, **_: Any) -> None:
            if number in (None, about[0]) and rank in (None, shoal.rank()):
                raise error

        setattr(self, hook, act)


class Data(keras.utils.PyDataset):
    """Of which one batch can't be read."""

    def __init__(self, bad: int | None = None) -> None:
        super().__init__()
        self._bad = bad
        self._x, self._y = models.images(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES // 16

    def __getitem__(self, number: int) -> Any:
        if number == self._bad:
            raise OSError("a disk that is broken")
        return self._x[number * 16 : number * 16 + 16], self._y[number * 16 : number * 16 + 16]


def compiled(model: keras.Model | None = None) -> keras.Model:
    return models.compile_for_classes(model or models.dense(), keras.optimizers.Adam(0.01))


def fit(*callbacks: Any, data: Any = None, model: keras.Model | None = None) -> keras.Model:
    model = model or compiled()
    model.fit(data or Data(), epochs=2, verbose=0, shuffle=False, callbacks=list(callbacks))
    return model


@scene
def at_the_end_of_an_epoch() -> None:
    fit(Raise(ValueError("not good enough"), "on_epoch_end", 1))


@scene
def after_a_batch() -> None:
    """With a staleness, only one worker comes to this batch."""
    fit(Raise(TooBad(3, "nothing is learnt"), "on_train_batch_end", 3))


@scene
def bad_data() -> None:
    fit(data=Data(bad=4))


@scene
def bad_arguments() -> None:
    compiled().fit(*models.images(), batch_size=-1)


@scene
def bad_model() -> None:
    """Found when it is traced."""

    class Broken(keras.Model):
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            raise ZeroDivisionError("a loss of nothing")

    whole = models.dense()
    fit(model=compiled(Broken(whole.inputs, whole.outputs)))


@scene
def on_one_worker() -> None:
    fit(Raise(KeyError("a key"), "on_train_batch_end", rank=BAD))


@scene
def on_one_worker_before_it_begins() -> None:
    fit(Raise(KeyError("a key"), "on_train_begin", rank=BAD))


@scene
def on_one_worker_when_it_is_over() -> None:
    fit(Raise(KeyError("a key"), "on_train_end", rank=BAD))


@scene
def in_an_evaluation() -> None:
    compiled().evaluate(Data(), verbose=0, callbacks=[Raise(ValueError("no"), "on_test_batch_end", 1)])


@scene
def in_a_fit_that_evaluates() -> None:
    model = compiled()

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            model.evaluate(Data(), verbose=0, callbacks=[Raise(ValueError("no"), "on_test_end", rank=BAD)])

    fit(Evaluate(), model=model)


keras.utils.set_random_seed(3)
model = fit()
told = []
for name in sys.argv[2:]:
    caught = None
    try:
        SCENES[name]()
    except Exception as error:
        caught = ([kind.__name__ for kind in type(error).__mro__], str(error))
    keras.utils.set_random_seed(4)
    history = model.fit(Data(), verbose=0, shuffle=False).history  # goes on with its optimizer
    told.append({"scene": name, "caught": caught, "losses": history["loss"]})
role = "server" if shoal.rank() >= shoal.size() else "worker"
Path(sys.argv[1], f"{role}-{shoal.rank()}.json").write_text(json.dumps(told))
