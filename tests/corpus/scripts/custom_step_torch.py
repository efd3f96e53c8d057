# backends: torch
# agrees: rounding
import os

os.environ["KERAS_BACKEND"] = "torch"

import torch
import keras
from keras import layers
import numpy as np

# A lower-level train_step in PyTorch's style, with a loss and metrics that the model keeps itself.
keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.loss_fn(y, y_pred)
        loss.backward()
        trainable_weights = [v for v in self.trainable_weights]
        gradients = [v.value.grad for v in trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, trainable_weights)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


inputs = keras.Input(shape=(24,))
outputs = layers.Dense(1)(layers.Dense(16, activation="tanh")(inputs))
model = CustomModel(inputs, outputs)
model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))
x = rng.random((480, 24)).astype("float32")
y = x[:, :3].sum(axis=1, keepdims=True)
history = model.fit(x, y, epochs=4, batch_size=48, shuffle=False, validation_data=(x[:96], y[:96]), verbose=0)
print(history.history)
