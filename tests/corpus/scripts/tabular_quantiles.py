# backends: jax
# agrees: rounding
import os

os.environ["KERAS_BACKEND"] = "jax"
from functools import partial

import keras
import numpy as np
from keras import ops

"""Quantile regression with the pinball loss, one output for each quantile."""

keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)
x = rng.uniform(-2, 2, (640, 1)).astype("float32")
y = (np.sin(2 * x) + 0.3 * np.abs(x) * rng.normal(size=x.shape)).astype("float32")
quantiles = [0.1, 0.5, 0.9]


def pinball(q, y_true, y_pred):
    error = y_true - y_pred
    return ops.mean(ops.maximum(q * error, (q - 1) * error), axis=-1)


inputs = keras.Input((1,))
hidden = keras.layers.Dense(32, activation="tanh")(inputs)
hidden = keras.layers.Dense(32, activation="tanh")(hidden)
outputs = [keras.layers.Dense(1, name=f"q{int(q * 100)}")(hidden) for q in quantiles]
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(0.01), loss=[partial(pinball, q) for q in quantiles])
history = model.fit(x, [y] * 3, batch_size=64, epochs=8, shuffle=False, verbose=0)
print("loss", history.history["loss"])
low, middle, high = model.predict(x, batch_size=64, verbose=0)
covered = np.mean((y >= low) & (y <= high))
print(f"coverage of the 80 % interval: {covered:.2f}")
np.savetxt("quantiles.csv", np.hstack([x, low, middle, high])[:20], delimiter=",", header="x,low,middle,high")
