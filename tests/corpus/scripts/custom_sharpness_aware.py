# backends: tensorflow
# agrees: refused: changes weights by itself, from the batch, before
"""Sharpness-aware minimisation: the step moves the weights, takes a second gradient there, and moves them back."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(6)


class SAMModel(keras.Model):
    def __init__(self, base, rho=0.05):
        super().__init__()
        self.base, self.rho = base, rho

    def call(self, inputs):
        return self.base(inputs)

    def train_step(self, data):
        (images, labels) = data
        with tf.GradientTape() as tape:
            predictions = self.base(images)
            loss = self.compute_loss(y=labels, y_pred=predictions)
        trainable_params = self.base.trainable_variables
        gradients = tape.gradient(loss, trainable_params)
        scale = self.rho / (tf.linalg.global_norm(gradients) + 1e-12)
        e_ws = []
        for gradient, param in zip(gradients, trainable_params):
            e_w = gradient * scale
            param.assign_add(e_w)
            e_ws.append(e_w)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self.base(images))
        sam_gradients = tape.gradient(loss, trainable_params)
        for param, e_w in zip(trainable_params, e_ws):
            param.assign_sub(e_w)
        self.optimizer.apply_gradients(zip(sam_gradients, trainable_params))
        return self.compute_metrics(images, labels, predictions)


x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
base = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
model = SAMModel(base)
model.compile(
    keras.optimizers.Adam(0.005), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(x, y, batch_size=64, epochs=4, shuffle=False, verbose=0)
print("accuracy", history.history["accuracy"][-1], "loss", history.history["loss"][-1])
