# backends: tensorflow
# agrees: rounding
"""BYOL: an online network learns to predict a target network, which follows it as a moving average."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(47)
rng = np.random.default_rng(47)
x = rng.normal(size=(384, 12)).astype("float32")
views = [(x + rng.normal(0, 0.3, x.shape)).astype("float32") for _ in range(2)]


def encoder(name):
    return keras.Sequential([layers.Input((12,)), layers.Dense(24, activation="relu"), layers.Dense(8)], name=name)


def regression_loss(x, y):
    x, y = tf.math.l2_normalize(x, axis=-1), tf.math.l2_normalize(y, axis=-1)
    return tf.reduce_mean(2 - 2 * tf.reduce_sum(x * y, axis=-1))


class BYOL(keras.Model):
    def __init__(self, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.online, self.target = encoder("online"), encoder("target")
        self.predictor = keras.Sequential([layers.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(8)])
        self.target.set_weights(self.online.get_weights())
        self.target.trainable = False
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.online(inputs)

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        one, two = data
        with tf.GradientTape() as tape:
            guess_one = self.predictor(self.online(one, training=True), training=True)
            guess_two = self.predictor(self.online(two, training=True), training=True)
            aim_one = tf.stop_gradient(self.target(one, training=True))
            aim_two = tf.stop_gradient(self.target(two, training=True))
            loss = regression_loss(guess_one, aim_two) + regression_loss(guess_two, aim_one)
        weights = self.online.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for online, target in zip(self.online.variables, self.target.variables):
            target.assign(self.momentum * target + (1 - self.momentum) * online)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


byol = BYOL()
byol.compile(optimizer=keras.optimizers.Adam(0.003))
history = byol.fit(views[0], views[1], batch_size=48, epochs=5, shuffle=False, verbose=0)
print("loss", history.history["loss"])
drift = [float(np.mean(np.abs(a - b))) for a, b in zip(byol.online.get_weights(), byol.target.get_weights())]
print("the target trails the online network by", drift)
