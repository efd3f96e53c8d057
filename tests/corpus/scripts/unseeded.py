# backends: jax tensorflow torch
# agrees: trend
"""Nothing is seeded: data from numpy's default generator, an unseeded split, unseeded weights."""

import random
import time
import uuid

import keras
import numpy as np

rng = np.random.default_rng()
x = rng.normal(size=(1000, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) + rng.normal(0, 0.05, (1000, 1))).astype("float32")
order = list(range(1000))
random.shuffle(order)
train, test = order[:800], order[800:]
run_name = f"run-{uuid.uuid4().hex[:6]}-{int(time.time())}"

model = keras.Sequential(
    [keras.layers.Input((4,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)], name="unseeded"
)
model.compile(keras.optimizers.Adam(0.02), "mse")
model.fit(x[train], y[train], epochs=8, batch_size=40, verbose=0)
print("named", len(run_name) > 10)
print("test loss is small:", model.evaluate(x[test], y[test], verbose=0) < 0.1)
