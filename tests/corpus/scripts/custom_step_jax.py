# backends: jax
# agrees: trend
"""train_step in JAX's style: stateless calls, a tuple of states in and out."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

keras.utils.set_random_seed(3)


class CustomModel(keras.Model):
    def compute_loss_and_updates(
        self, trainable_variables, non_trainable_variables, metrics_variables, x, y, training=False
    ):
        y_pred, non_trainable_variables = self.stateless_call(
            trainable_variables, non_trainable_variables, x, training=training
        )
        loss = self.compute_loss(x, y, y_pred)
        return loss, (y_pred, non_trainable_variables, metrics_variables)

    def train_step(self, state, data):
        trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables = state
        x, y = data
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (y_pred, non_trainable_variables, metrics_variables)), grads = grad_fn(
            trainable_variables, non_trainable_variables, metrics_variables, x, y, training=True
        )
        trainable_variables, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        new_metrics_vars, logs = [], {}
        for metric in self.metrics:
            this_metric_vars = metrics_variables[len(new_metrics_vars) : len(new_metrics_vars) + len(metric.variables)]
            if metric.name == "loss":
                this_metric_vars = metric.stateless_update_state(this_metric_vars, loss)
            else:
                this_metric_vars = metric.stateless_update_state(this_metric_vars, y, y_pred)
            logs[metric.name] = metric.stateless_result(this_metric_vars)
            new_metrics_vars += this_metric_vars
        state = (trainable_variables, non_trainable_variables, optimizer_variables, new_metrics_vars)
        return logs, state


inputs = keras.Input(shape=(16,))
x = keras.layers.Dense(16, activation="relu")(inputs)
outputs = keras.layers.Dense(1)(x)
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
x = np.random.default_rng(3).random((600, 16)).astype("float32")
y = x.sum(axis=1, keepdims=True)
history = model.fit(x, y, epochs=4, batch_size=60, shuffle=False, verbose=0)
print(
    {name: [round(v, 4) if not isinstance(v, dict) else v for v in values] for name, values in history.history.items()}
)
print("predictions", float(model.predict(x, batch_size=60, verbose=0).mean()))
