# backends: jax tensorflow torch
# agrees: rounding
"""Fewer samples than one batch, one sample per batch, a last batch that is small."""

import keras
import numpy as np

keras.utils.set_random_seed(22)
x = np.linspace(-1, 1, 21, dtype="float32").reshape(21, 1)
y = 3 * x - 1


def line():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


print("default batch", line().fit(x, y, epochs=3, shuffle=False, verbose=0).history["loss"])
print("large batch", line().fit(x[:4], y[:4], batch_size=128, epochs=3, shuffle=False, verbose=0).history["loss"])
print("rest of five", line().fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"])
print("one by one", line().fit(x[:4], y[:4], batch_size=1, epochs=2, shuffle=False, verbose=0).history["loss"])
