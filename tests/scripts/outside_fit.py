"""Trains in loops of its own, is told that it can't, and trains with `fit`: `outside_fit.py OUT`.

Writes what each loop was told, and the text of the line that was named.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

import shoal

BACKEND = keras.backend.backend()
CASES: dict[str, Callable[[keras.Model, Any], Any]] = {}

x, y = models.images(16)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


def zeros(model: keras.Model) -> list[Any]:
    return [keras.ops.zeros(v.shape) for v in model.trainable_variables]


@case
def apply_gradients(model: keras.Model, optimizer: Any) -> None:
    optimizer.apply_gradients(zip(zeros(model), model.trainable_variables, strict=True))  # here


@case
def apply(model: keras.Model, optimizer: Any) -> None:
    optimizer.apply(zeros(model), model.trainable_variables)  # here


@case
def stateless_apply(model: keras.Model, optimizer: Any) -> None:
    optimizer.build(model.trainable_variables)
    values = [[v.value for v in kind] for kind in (optimizer.variables, model.trainable_variables)]
    optimizer.stateless_apply(values[0], zeros(model), values[1])  # here


@case
def scaled_loss(model: keras.Model, optimizer: Any) -> None:
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    scaled.apply(zeros(model), model.trainable_variables)  # here


@case
def optimizer_of_the_users_own(model: keras.Model, optimizer: Any) -> None:
    class Own(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(grads, trainable_variables)  # here

    Own().apply(zeros(model), model.trainable_variables)


if BACKEND == "tensorflow":
    import tensorflow as tf

    @case
    def guide(model: keras.Model, optimizer: Any) -> None:
        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            grads = tape.gradient(value, model.trainable_weights)
            if value > 0:
                optimizer.apply(grads, model.trainable_weights)  # here
            return value

        for start in range(0, 16, 8):
            train_step(x[start : start + 8], y[start : start + 8])

    @case
    def keras_own_step(model: keras.Model, optimizer: Any) -> None:
        model.compile(optimizer, loss)
        model.train_step((tf.constant(x), tf.constant(y)))  # here


if BACKEND == "jax":
    import jax

    @case
    def guide(model: keras.Model, optimizer: Any) -> None:
        def compute_loss(trainable: Any, others: Any, x: Any, y: Any) -> Any:
            predicted, others = model.stateless_call(trainable, others, x, training=True)
            return loss(y, predicted), others

        compute_gradients = jax.value_and_grad(compute_loss, has_aux=True)

        @jax.jit
        def train_step(state: Any, data: Any) -> Any:
            trainable, others, variables = state
            (value, others), grads = compute_gradients(trainable, others, *data)
            trainable, variables = optimizer.stateless_apply(variables, grads, trainable)  # here
            return value, (trainable, others, variables)

        optimizer.build(model.trainable_variables)
        kinds = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        train_step(tuple([v.value for v in kind] for kind in kinds), (x, y))


if BACKEND == "torch":
    import torch

    @case
    def guide(model: keras.Model, optimizer: Any) -> None:
        optimizer = torch.optim.Adam(model.parameters())
        value = torch.nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
        model.zero_grad()
        value.backward()
        with torch.no_grad():
            optimizer.step()  # here

    @case
    def keras_optimizer(model: keras.Model, optimizer: Any) -> None:
        value = loss(torch.tensor(y), model(torch.tensor(x), training=True))
        model.zero_grad()
        value.backward()
        weights = list(model.trainable_weights)
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in weights], weights)  # here

    @case
    def wrapped_module(model: keras.Model, optimizer: Any) -> None:
        module = torch.nn.Linear(3, 2)
        wrapped = keras.layers.TorchModuleWrapper(module)
        wrapped(torch.zeros(1, 3)).sum().backward()
        torch.optim.SGD(module.parameters()).step()  # here

    def train_what_is_not_keras() -> None:
        module = torch.nn.Linear(3, 2)
        for optimizer in (torch.optim.SGD(module.parameters()), torch.optim.Adam(module.parameters())):
            for _ in range(2):
                module(torch.zeros(1, 3)).sum().backward()
                optimizer.step()


def told(train: Callable[[keras.Model, Any], Any]) -> str:
    model = models.dense()
    before = model.get_weights()
    said = "nothing"
    try:
        train(model, keras.optimizers.SGD(0.1))
    except shoal.CannotDistribute as error:
        said = str(error)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)), "it trained"
    return said


def named_line(said: str) -> str:
    found = re.match(r"(\S+\.py):(\d+): ", said)
    return Path(found[1]).read_text().splitlines()[int(found[2]) - 1] if found else ""


answers = {name: told(train) for name, train in CASES.items()}
with contextlib.suppress(NameError):
    train_what_is_not_keras()
model = models.compile_for_classes(models.dense(), "adam")
model.fit(x, y, batch_size=8, verbose=0)
if shoal.is_chief():
    lines = {name: named_line(said) for name, said in answers.items()}
    Path(sys.argv[1]).write_text(json.dumps([answers, lines]))
