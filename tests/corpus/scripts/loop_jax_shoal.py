# backends: jax
# agrees: rounding
"""The loop of loop_jax.py: @shoal.step in place of @jax.jit, and shoal.batches around the arrays."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import shoal
from sklearn.datasets import load_digits

keras.utils.set_random_seed(10)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

inputs = keras.Input(shape=(64,), name="digits")
h = keras.layers.Dense(32, activation="relu")(inputs)
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(10)(h))
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(learning_rate=1e-3)
accuracy = keras.metrics.SparseCategoricalAccuracy()


def compute_loss_and_updates(trainable_variables, non_trainable_variables, x, y):
    y_pred, non_trainable_variables = model.stateless_call(
        trainable_variables, non_trainable_variables, x, training=True
    )
    return loss_fn(y, y_pred), (y_pred, non_trainable_variables)


grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)


@shoal.step
def train_step(state, x, y):
    trainable_variables, non_trainable_variables, optimizer_variables, metric_variables = state
    (loss, (y_pred, non_trainable_variables)), grads = grad_fn(trainable_variables, non_trainable_variables, x, y)
    trainable_variables, optimizer_variables = optimizer.stateless_apply(
        optimizer_variables, grads, trainable_variables
    )
    metric_variables = accuracy.stateless_update_state(metric_variables, y, y_pred)
    return loss, (trainable_variables, non_trainable_variables, optimizer_variables, metric_variables)


optimizer.build(model.trainable_variables)
parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables, accuracy.variables)
state = tuple([v.value for v in variables] for variables in parts)
for epoch in range(2):
    for step, (x_batch, y_batch) in enumerate(shoal.batches(x[:1408], y[:1408], batch_size=64)):
        loss, state = train_step(state, x_batch, y_batch)
        if step % 10 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {float(loss):.4f}")
    print(f"Training accuracy: {float(accuracy.stateless_result(state[3])):.4f}")
    state = (*state[:3], [v.value for v in accuracy.variables])
for variable, value in zip(model.trainable_variables + optimizer.variables, state[0] + state[2]):
    variable.assign(value)
predictions = np.argmax(model.predict(x, verbose=0), axis=-1)
print("accuracy", float(np.mean(predictions == y)))
