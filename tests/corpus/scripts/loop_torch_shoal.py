# backends: torch
# agrees: rounding
"""The loop of loop_torch_keras_optimizer.py, with a decorated step and divided batches."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import shoal
import torch

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
x = rng.normal(size=(384, 10)).astype("float32")
y = x @ rng.normal(size=(10, 1)).astype("float32")
train = torch.utils.data.TensorDataset(torch.from_numpy(x[:320]), torch.from_numpy(y[:320]))
loader = torch.utils.data.DataLoader(train, batch_size=32)

model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(learning_rate=1e-2)
loss_fn = keras.losses.MeanSquaredError()
mae = keras.metrics.MeanAbsoluteError()


@shoal.step(model, metrics=[mae])
def train_step(inputs, targets):
    predictions = model(inputs, training=True)
    loss = loss_fn(targets, predictions)
    model.zero_grad()
    loss.backward()
    gradients = [v.value.grad for v in model.trainable_weights]
    with torch.no_grad():
        optimizer.apply(gradients, model.trainable_weights)
    mae.update_state(targets, predictions)
    return loss


for epoch in range(3):
    for inputs, targets in shoal.batches(loader):
        loss = train_step(inputs, targets)
    print(f"epoch {epoch}: loss {float(loss):.4f} mae {float(mae.result()):.4f}")
    mae.reset_state()
with torch.no_grad():
    print("validation", float(loss_fn(torch.from_numpy(y[320:]), model(torch.from_numpy(x[320:]), training=False))))
