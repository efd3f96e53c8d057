# backends: jax torch
# agrees: trend
"""Uncertainty from dropout that stays on when the model is asked."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(63)
rng = np.random.default_rng(63)
x = np.concatenate([rng.uniform(-2, -0.5, (300, 1)), rng.uniform(0.5, 2, (300, 1))]).astype("float32")
y = (np.sin(3 * x) + rng.normal(0, 0.1, x.shape)).astype("float32")


class AlwaysDropout(layers.Dropout):
    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


inputs = keras.Input((1,))
h = layers.Dense(48, activation="relu")(inputs)
h = AlwaysDropout(0.1, seed=1)(h)
h = layers.Dense(48, activation="relu")(h)
h = AlwaysDropout(0.1, seed=2)(h)
model = keras.Model(inputs, layers.Dense(1)(h))
model.compile(keras.optimizers.Adam(0.01), loss=keras.losses.LogCosh())
model.fit(x, y, batch_size=50, epochs=15, verbose=0)
grid = np.linspace(-2, 2, 41, dtype="float32")[:, None]
draws = np.stack([model.predict(grid, verbose=0)[:, 0] for _ in range(10)])
print("predictions vary:", bool((draws.std(axis=0) > 0).all()))
print("mean loss", model.evaluate(x, y, verbose=0))
