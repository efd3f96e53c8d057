# backends: torch
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
"""A loop from scratch on PyTorch with a Keras optimizer, metrics and a validation pass."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
x = rng.normal(size=(384, 10)).astype("float32")
y = x @ rng.normal(size=(10, 1)).astype("float32")

model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(learning_rate=1e-2)
loss_fn = keras.losses.MeanSquaredError()
mae = keras.metrics.MeanAbsoluteError()

for epoch in range(3):
    for start in range(0, 320, 32):
        inputs, targets = torch.from_numpy(x[start : start + 32]), torch.from_numpy(y[start : start + 32])
        predictions = model(inputs, training=True)
        loss = loss_fn(targets, predictions)
        model.zero_grad()
        trainable_weights = [v for v in model.trainable_weights]
        loss.backward()
        gradients = [v.value.grad for v in trainable_weights]
        with torch.no_grad():
            optimizer.apply(gradients, trainable_weights)
        mae.update_state(targets, predictions)
    print(f"epoch {epoch}: mae {float(mae.result()):.4f}")
    mae.reset_state()
with torch.no_grad():
    print("validation", float(loss_fn(torch.from_numpy(y[320:]), model(torch.from_numpy(x[320:]), training=False))))
