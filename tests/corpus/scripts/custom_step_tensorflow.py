# backends: tensorflow
# agrees: trend
"""train_step and test_step overridden in TensorFlow's style, with sample weights, as the guides show."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf
import keras
from keras import layers
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.random((512, 24)).astype("float32")
y = x[:, :3].sum(axis=1, keepdims=True)
sw = rng.random((512, 1)).astype("float32")


class CustomModel(keras.Model):
    def train_step(self, data):
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply(gradients, trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


inputs = keras.Input(shape=(24,))
outputs = layers.Dense(1)(layers.Dense(16, activation="relu")(inputs))
model = CustomModel(inputs, outputs)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
model.fit(x, y, epochs=2, batch_size=64, shuffle=False, verbose=2)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
model.fit(x, y, sample_weight=sw, epochs=2, batch_size=64, shuffle=False, verbose=2)
print(model.evaluate(x, y, verbose=0))
