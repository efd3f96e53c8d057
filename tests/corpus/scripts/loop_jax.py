# backends: jax
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
"""A loop from scratch on JAX: stateless_call, value_and_grad, stateless_apply, and the state put back at the end."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(10)
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

inputs = keras.Input(shape=(64,), name="digits")
h = keras.layers.Dense(32, activation="relu")(inputs)
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(10)(h))
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(learning_rate=1e-3)


def compute_loss_and_updates(trainable_variables, non_trainable_variables, x, y):
    y_pred, non_trainable_variables = model.stateless_call(
        trainable_variables, non_trainable_variables, x, training=True
    )
    return loss_fn(y, y_pred), non_trainable_variables


grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)


@jax.jit
def train_step(state, data):
    trainable_variables, non_trainable_variables, optimizer_variables = state
    x, y = data
    (loss, non_trainable_variables), grads = grad_fn(trainable_variables, non_trainable_variables, x, y)
    trainable_variables, optimizer_variables = optimizer.stateless_apply(
        optimizer_variables, grads, trainable_variables
    )
    return loss, (trainable_variables, non_trainable_variables, optimizer_variables)


optimizer.build(model.trainable_variables)
state = (
    [v.value for v in model.trainable_variables],
    [v.value for v in model.non_trainable_variables],
    [v.value for v in optimizer.variables],
)
for epoch in range(2):
    for step in range(22):
        data = (x[step * 64 : (step + 1) * 64], y[step * 64 : (step + 1) * 64])
        loss, state = train_step(state, data)
        if step % 10 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {float(loss):.4f}")
trainable_variables, non_trainable_variables, optimizer_variables = state
for variable, value in zip(model.trainable_variables, trainable_variables):
    variable.assign(value)
predictions = np.argmax(model.predict(x, verbose=0), axis=-1)
print("accuracy", float(np.mean(predictions == y)))
