# backends: jax tensorflow torch
# agrees: rounding
"""A loss that is summed over the batch."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(128, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001), keras.losses.MeanSquaredError(reduction="sum"))
model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)
print(model.evaluate(x, y, verbose=0), model.train_on_batch(x[:30], y[:30]), model.test_on_batch(x[:30], y[:30]))
