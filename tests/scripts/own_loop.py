"""Loops as in Keras's guides on three backends, with the lines changed that Shoal needs. For own_steps.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from outcomes import told

import shoal

BACKEND = keras.backend.backend()


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.normal(size=(samples, 6)).astype("float32"), rng.integers(0, 3, samples)


def classifier(*more: Any) -> keras.Model:
    keras.utils.set_random_seed(2)
    return keras.Sequential([layers.Input((6,)), layers.Dense(16, "tanh"), *more, layers.Dense(3)])


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def made(model: keras.Model, optimizer: Any, metric: Any) -> Any:
    """A step function, and the state that it begins with, as the backend's guide has them."""
    if BACKEND == "jax":
        import jax

        def loss_and_updates(trainable: Any, others: Any, x: Any, y: Any) -> Any:
            logits, others = model.stateless_call(trainable, others, x, training=True)
            return loss_of(y, logits), (others, logits)

        @shoal.step
        def train_step(state: Any, x: Any, y: Any) -> Any:
            trainable, others, slots, metrics = state
            both = jax.value_and_grad(loss_and_updates, has_aux=True)
            (loss, (others, logits)), gradients = both(trainable, others, x, y)
            trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
            metrics = metric.stateless_update_state(metrics, y, logits)
            return loss, (trainable, others, slots, metrics)

        optimizer.build(model.trainable_variables)
        variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables, metric.variables)
        return train_step, tuple([v.value for v in kind] for kind in variables)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        @shoal.step(model, metrics=[metric])
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = loss_of(y, logits)
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
            metric.update_state(y, logits)
            return loss

        return train_step, None

    @shoal.step(model, metrics=[metric])
    def train_step(x: Any, y: Any) -> Any:
        logits = model(x, training=True)
        loss = loss_of(y, logits)
        model.zero_grad()
        loss.backward()
        optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)
        metric.update_state(y, logits)
        return loss

    return train_step, None


def in_slices(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, len(x), 16):
        yield x[first : first + 16], y[first : first + 16]


READ = {
    "arrays": lambda x, y: shoal.batches(x, y, batch_size=16),
    "a stream": lambda x, y: shoal.batches(in_slices(x, y)),  # of which nobody knows the end
    "no source": lambda x, y: in_slices(x, y),  # the loop gives arrays itself
}


def train(
    model: keras.Model, kind: str = "arrays", between: Callable[[], None] = lambda: None, calls: int = 1
) -> dict[str, Any]:
    """`calls`: steps with each batch."""
    optimizer = keras.optimizers.Adam(0.01)
    metric = keras.metrics.SparseCategoricalAccuracy()
    step, state = made(model, optimizer, metric)
    x, y = data(64)
    numbers = []
    for epoch in range(3):
        for number, batch in enumerate(READ[kind](x, y)):
            for _ in range(calls):
                if state is None:
                    loss = step(*batch)
                else:
                    loss, state = step(state, *batch)
                numbers.append(float(loss))
            if epoch == 1 and number == 2:
                between()
        if state is not None:
            for variable, value in zip(metric.variables, state[3], strict=True):
                variable.assign(value)
            state = (*state[:3], [ops.zeros_like(value) for value in state[3]])
        numbers.append(float(metric.result()))
        metric.reset_state()
    values = [value for kind in state[:3] for value in kind] if state is not None else None
    return told(values or [*model.variables, *optimizer.variables], numbers)


def scenes(between: Callable[[], None], few: bool) -> dict[str, Any]:
    random = classifier(layers.Dropout(0.3, seed=1), layers.BatchNormalization())
    if few:
        return {"loop": train(classifier(), between=between)}
    return {
        "loop": train(classifier()),
        "loop over a stream, with two steps for a batch": train(classifier(), "a stream", calls=2),
        "loop over slices": train(classifier(), "no source"),
        "loop, random": train(random, between=between),
    }
