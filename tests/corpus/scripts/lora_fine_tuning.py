# backends: torch jax
# agrees: rounding
"""Low-rank adaptation: a trained model, enable_lora, and a second fit in which little is trained."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(77)
rng = np.random.default_rng(77)
x = rng.normal(size=(384, 16)).astype("float32")
first, second = x[:, :1] + x[:, 1:2], x[:, 2:3] - x[:, 3:4]

model = keras.Sequential(
    [layers.Input((16,)), layers.Dense(32, activation="relu", name="hidden"), layers.Dense(1, name="head")]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, first, epochs=4, batch_size=48, shuffle=False, verbose=0)
print("first task", model.evaluate(x, first, verbose=0))

model.get_layer("hidden").enable_lora(rank=2)
model.summary()
model.compile(keras.optimizers.Adam(0.02), "mse")
history = model.fit(x, second, epochs=4, batch_size=48, shuffle=False, verbose=0)
print("second task", history.history["loss"])
