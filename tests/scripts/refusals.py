"""Asks for what can't be distributed and writes what it was told: `refusals.py OUT`. No `shoal run` needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from keras import layers

import shoal

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def fit(*data: Any, model: keras.Model | None = None, loss: Any = None, **settings: Any) -> None:
    model = model or models.dense()
    model.compile("sgd", loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    try:
        model.fit(*data, verbose=0, **({"batch_size": 16} | settings))
    finally:
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)), "it trained"


@case
def more_pieces_than_samples_in_a_batch() -> None:
    fit(*models.images(), batch_size=3)


@case
def fewer_samples_than_a_batch() -> None:
    x, y = models.images()
    fit(x[:10], y[:10])


@case
def generator_without_steps() -> None:
    def batches() -> Iterator[Any]:
        while True:
            yield models.images()

    fit(batches(), batch_size=None)


@case
def endless_tf_dataset_without_steps() -> None:
    import tensorflow as tf

    fit(tf.data.Dataset.from_tensor_slices(models.images()).batch(16).repeat(), batch_size=None)


@case
def arrays_of_different_lengths() -> None:
    x, y = models.images()
    fit(x, y[:-1])


@case
def sparse_data() -> None:
    import scipy.sparse

    x, y = models.images()
    fit(scipy.sparse.csr_matrix(x.reshape(len(x), -1)), y)


@case
def no_data() -> None:
    fit(None)


@case
def validation_split_of_everything() -> None:
    fit(*models.images(), validation_split=1.5)


@case
def sum_over_the_batch() -> None:
    fit(*models.images(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"))


class Stepper(keras.Model):
    """Gives gradients to optimizers as it is told."""

    def __init__(self, apply: Callable[[Stepper, Any], None]) -> None:
        super().__init__()
        self.out = layers.Dense(5)
        self.other = keras.optimizers.SGD(0.1, name="other")
        self._apply = apply

    def build(self, shape: Any) -> None:
        self.out.build((None, 64))
        self.other.build(self.out.trainable_variables)

    def call(self, x: Any) -> Any:
        return self.out(keras.ops.reshape(x, (-1, 64)))

    def train_step(self, *arguments: Any) -> Any:
        if keras.backend.backend() == "jax":
            state, _ = arguments
            trainable, others, optimizer, metrics = state
            for by in self._apply(self):
                variables = optimizer if by is self.optimizer else [v.value for v in by.variables]
                trainable, optimizer = by.stateless_apply(variables, [v * 0 for v in trainable], trainable)
            return {"loss": 0.0}, (trainable, others, optimizer, metrics)
        for by in self._apply(self):
            by.apply([keras.ops.zeros(v.shape) for v in self.trainable_variables], self.trainable_variables)
        return {"loss": keras.ops.zeros(())}


def built(apply: Callable[[Stepper], list[Any]]) -> Stepper:
    model = Stepper(apply)
    model.build((None, 8, 8, 1))
    return model


@case
def two_applies() -> None:
    fit(*models.images(), model=built(lambda model: [model.optimizer, model.optimizer]))


@case
def another_optimizer() -> None:
    fit(*models.images(), model=built(lambda model: [model.other]))


@case
def no_apply() -> None:
    fit(*models.images(), model=built(lambda model: []))


class Follower(keras.Model):
    """Lets other weights follow the trained ones, as target networks do."""

    def __init__(self, clip: bool) -> None:
        super().__init__()
        self.out = layers.Dense(5)
        self.followed = layers.Dense(5, trainable=False)
        self._clip = clip

    def build(self, shape: Any) -> None:
        self.out.build((None, 64))
        self.followed.build((None, 64))

    def call(self, x: Any) -> Any:
        return self.out(keras.ops.reshape(x, (-1, 64)))

    def train_step(self, *arguments: Any) -> Any:
        result = super().train_step(*arguments)
        if keras.backend.backend() == "jax":
            logs, (trainable, others, optimizer, metrics) = result
            if self._clip:
                return logs, ([keras.ops.clip(v, -0.1, 0.1) for v in trainable], others, optimizer, metrics)
            return logs, (trainable, [v * 1 for v in trainable], optimizer, metrics)
        target = self.out if self._clip else self.followed
        target.kernel.assign(keras.ops.clip(self.out.kernel, -0.1, 0.1))
        return result


def follower(clip: bool) -> Follower:
    model = Follower(clip)
    model.build((None, 8, 8, 1))
    return model


@case
def weights_changed_by_the_step() -> None:
    fit(*models.images(), model=follower(clip=True))


@case
def state_computed_from_updated_weights() -> None:
    fit(*models.images(), model=follower(clip=False))


@case
def strings() -> None:
    fit(np.array([["a"], ["b"]] * 20, dtype=object), np.zeros(40))


@case
def targets_beside_a_dataset() -> None:
    import tensorflow as tf

    x, y = models.images()
    fit(tf.data.Dataset.from_tensor_slices(x).batch(16), y, batch_size=None)


@case
def evaluate_nothing() -> None:
    import tensorflow as tf

    model = models.compile_for_classes(models.dense(), "sgd")
    model.evaluate(tf.data.Dataset.from_tensor_slices(models.images()).batch(16).filter(lambda x, y: False), verbose=0)


@case
def no_pieces() -> None:
    shoal.AllReduce(pieces=0)


def main(out: Path) -> None:
    told = {}
    for name, ask in CASES.items():
        try:
            with shoal.AllReduce(pieces=4).scope():
                ask()
        except ValueError as error:
            told[name] = f"{type(error).__name__}: {error}"
        else:
            told[name] = "it went through"
    out.write_text(json.dumps(told))


main(Path(sys.argv[1]))
