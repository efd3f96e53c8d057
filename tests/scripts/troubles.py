"""Trains, and lets something go wrong on one worker: `troubles.py CASE`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import keras
import models
import numpy as np

import shoal
import shoal.session

CASES: dict[str, Callable[[], Any]] = {}
BAD = 1  # the rank of the worker that misbehaves


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


class At(keras.callbacks.Callback):
    """Acts on the bad worker after a step."""

    def __init__(self, step: int, act: Callable[[keras.Model], Any]) -> None:
        super().__init__()
        self._step = step
        self._act = act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._step and shoal.rank() == BAD:
            self._act(self.model)


def fit(act: Callable[[keras.Model], Any] = lambda model: None, model: keras.Model | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = models.compile_for_classes(model or models.dense(), keras.optimizers.SGD(0.1))
    x, y = models.images()
    model.fit(np.tile(x, (8, 1, 1, 1)), np.tile(y, 8), batch_size=16, verbose=0, callbacks=[At(4, act)])
    return model


def flip_one_bit(model: keras.Model) -> None:
    weights = model.get_weights()
    kernel = np.array(weights[0])
    kernel.view(np.uint32)[3, 5] ^= 1
    model.set_weights([kernel, *weights[1:]])


def fail(model: keras.Model) -> None:
    raise ArithmeticError("the numbers do not add up")


@case
def bit_flip() -> None:
    fit(flip_one_bit)


@case
def other_model() -> None:
    fit(model=models.convolution() if shoal.rank() == BAD else None)


@case
def other_data() -> None:
    model = models.compile_for_classes(models.dense(), "sgd")
    rng = np.random.default_rng(shoal.rank())
    model.fit(rng.normal(size=(32, 8, 8, 1)), rng.integers(0, 5, 32), verbose=0)


@case
def nothing() -> None:
    """No trouble: what a script leaves to chance, weights and the order of its data, is alike on all workers."""
    x, y = models.sentences()
    order = np.random.permutation(len(x))
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Embedding(20, 8), keras.layers.SimpleRNN(8), keras.layers.Dense(5)]
    )
    models.compile_for_classes(model, "sgd").fit(x[order], y[order], verbose=0)
    words = [f"word {i}" for i in range(50)]
    told = shoal.session.current().worker_group.gather("what all must agree on", "".join(set(words)).encode()).values
    assert told[0] == told[1]
    told = shoal.session.current().worker_group.gather("the weights", models.weights_hash(model).encode()).values
    assert told[0] == told[1]


@case
def other_calls() -> None:
    model = fit()
    if shoal.is_chief():
        model.evaluate(*models.images(), verbose=0)
    else:
        fit()


@case
def raises() -> None:
    fit(fail)


@case
def bad_sample() -> None:
    """One of the samples, whoever gets it, makes the model fail."""

    class Picky(keras.Model):
        def train_step(self, *given: Any) -> Any:
            if (given[-1][0].numpy() == -1.0).any():
                raise ArithmeticError("a pixel is negative")
            return super().train_step(*given)

    x, y = models.images()
    x[13] = -1.0
    keras.utils.set_random_seed(1)
    dense = models.dense()
    model = models.compile_for_classes(Picky(dense.inputs, dense.outputs), keras.optimizers.SGD(0.1))
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)


@case
def caught_on_one() -> None:
    """Only the bad worker catches its error, and goes on to another call."""
    with contextlib.suppress(ArithmeticError if shoal.rank() == BAD else ()):
        fit(fail)
    fit()


@case
def caught_and_over() -> None:
    """The bad worker catches its error, and its script is over."""
    with contextlib.suppress(ArithmeticError if shoal.rank() == BAD else ()):
        fit(fail)


@case
def caught_before_a_file() -> None:
    """The chief raises before it writes what the others wait for; it goes on to a call that needs them all."""

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if shoal.is_chief():
                raise ArithmeticError("the numbers do not add up")
            self.model.save_weights("never.weights.h5")

    model = models.compile_for_classes(models.dense(), "sgd")
    with contextlib.suppress(ArithmeticError if shoal.is_chief() else ()):
        model.fit(*models.images(), verbose=0, callbacks=[Save()])
    model.save_weights("last.weights.h5")


@case
def a_file_that_can_not_be_written() -> None:
    """It fails on all workers with an error of the same class, which a script may catch."""
    model = models.compile_for_classes(models.dense(), "sgd")
    model.fit(*models.images(), verbose=0)
    with contextlib.suppress(OSError):
        model.save_weights("/nowhere/first.weights.h5")
    model.fit(*models.images(), verbose=0)
    model.save("/nowhere/second.keras")


@case
def caught_by_a_server() -> None:
    """Only a server finds that it can't do its part. If its script went on, the worker would wait for it."""

    class Forgetful(keras.optimizers.SGD):
        def __init__(self, strength: float = 1.0, **given: Any) -> None:
            super().__init__(**given)
            self.strength = strength

    with contextlib.suppress(Exception):
        models.compile_for_classes(models.dense(), Forgetful(2.0)).fit(*models.images(), verbose=0)


@case
def dies() -> None:
    fit(lambda model: os.kill(os.getpid(), signal.SIGKILL))


@case
def stops() -> None:
    fit(lambda model: os.kill(os.getpid(), signal.SIGSTOP))


@case
def trains_by_hand() -> None:
    models.compile_for_classes(models.dense(), "sgd").train_on_batch(*models.images())


CASES[sys.argv[1]]()
