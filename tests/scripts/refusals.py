"""Asks for what can't be distributed and writes what it was told: `refusals.py OUT`. No `shoal run` needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

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
def a_generator_without_a_batch() -> None:
    fit(iter(()), batch_size=None)


@case
def validation_that_never_ends() -> None:
    import tensorflow as tf

    endless = tf.data.Dataset.from_tensor_slices(models.images()).batch(16).repeat()
    fit(*models.images(), validation_data=endless)


@case
def a_number_instead_of_rows() -> None:
    x, _ = models.images()
    fit(iter([(x, 3.0)]), batch_size=None)


@case
def no_samples() -> None:
    x, y = models.images()
    fit(x[:0], y[:0])


@case
def a_batch_that_a_loader_drops() -> None:
    import torch

    x, y = models.images()
    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    fit(torch.utils.data.DataLoader(dataset, batch_size=64, drop_last=True), batch_size=None)


@case
def class_weights_beside_a_loader() -> None:
    import torch

    x, y = models.images()
    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    fit(torch.utils.data.DataLoader(dataset, batch_size=16), batch_size=None, class_weight={0: 2.0})


@case
def arrays_of_different_lengths() -> None:
    x, y = models.images()
    fit(x, y[:-1])


@case
def what_is_no_array() -> None:
    x, y = models.images()
    fit({"x": x, "more": {1, 2}}, y)


@case
def no_data() -> None:
    fit(None)


@case
def validation_split_of_everything() -> None:
    fit(*models.images(), validation_split=1.5)


@case
def strings_where_keras_takes_none() -> None:
    if keras.backend.backend() == "tensorflow":
        fit(np.array([["a"], 3] * 20, dtype=object), np.zeros(40))
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
