# backends: jax
# agrees: rounding
"""keras.distribution on the devices of one process, as the JAX guides have it; there is one device here."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

keras.utils.set_random_seed(52)
devices = keras.distribution.list_devices()
print("devices", len(devices))
keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
rng = np.random.default_rng(52)
x = rng.normal(size=(256, 12)).astype("float32")
y = x[:, :1] * x[:, 1:2]
model = keras.Sequential([keras.layers.Input((12,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, y, epochs=3, batch_size=32, shuffle=False, verbose=0)
print("loss", history.history["loss"])
