"""Which losses each part of a step computes on TensorFlow: `parts.py OUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from shoal import session
from shoal.hook.backends.registry import engine_for

computed: list[str] = []


def noting(name: str, loss: Any) -> Any:
    """The same loss; when it is computed, that is noted. TensorFlow may leave it out where nobody needs it."""

    def note(value: Any) -> Any:
        computed.append(name)
        return np.float32(0.0) * value

    return loss + tf.reshape(tf.stop_gradient(tf.numpy_function(note, [loss], tf.float32, stateful=False)), ())


class Game(keras.Model):
    """Two networks, two optimizers, and a metric for each loss."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([layers.Input((4,)), layers.Dense(1)])
        self.maker = keras.Sequential([layers.Input((4,)), layers.Dense(4)])
        self.optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)]
        self.critic_loss = keras.metrics.Mean(name="critic")
        self.maker_loss = keras.metrics.Mean(name="maker")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.critic_loss, self.maker_loss]

    def train_step(self, real: Any) -> Any:
        with tf.GradientTape() as tape:
            critic = ops.mean(self.critic(self.maker(real))) - ops.mean(self.critic(real))
        weights = self.critic.trainable_weights
        self.optimizers[0].apply(tape.gradient(critic, weights), weights)
        with tf.GradientTape() as tape:
            maker = -ops.mean(self.critic(self.maker(real)))
        weights = self.maker.trainable_weights
        self.optimizers[1].apply(tape.gradient(maker, weights), weights)
        self.critic_loss.update_state(noting("critic", critic))
        self.maker_loss.update_state(noting("maker", maker))
        return {"critic": self.critic_loss.result(), "maker": self.maker_loss.result()}


model = Game()
model.compile()
engine = engine_for(session.current(), model)
batch = np.ones((8, 4), np.float32)
engine.begin(1)
shape = engine.trace(batch)
found = []
for part, about in enumerate(shape.parts):
    computed.clear()
    arrays = [np.array(array) for array in engine.piece(part, batch, 0, 1.0)]
    found.append(sorted(set(computed)))
    gradients, states, _, _ = about.split(arrays)
    engine.apply(part, gradients, states)
Path(sys.argv[1]).write_text(json.dumps(found))
