# backends: jax torch
# agrees: trend
"""Weights as distributions: a variational layer with its KL term from add_loss, and several predictions of one input."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(18)


class DenseVariational(layers.Layer):
    def __init__(self, units, kl_weight, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.units, self.kl_weight = units, kl_weight
        self.activation = keras.activations.get(activation)
        self.seed_generator = keras.random.SeedGenerator(5)

    def build(self, input_shape):
        shape = (input_shape[-1], self.units)
        self.mean = self.add_weight(shape=shape, initializer="glorot_uniform", name="mean")
        self.log_std = self.add_weight(shape=shape, initializer=keras.initializers.Constant(-4.0), name="log_std")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, inputs):
        std = ops.exp(self.log_std)
        kernel = self.mean + std * keras.random.normal(self.mean.shape, seed=self.seed_generator)
        divergence = ops.sum(0.5 * (ops.square(self.mean) + ops.square(std) - 1) - self.log_std)
        self.add_loss(self.kl_weight * divergence)
        return self.activation(ops.matmul(inputs, kernel) + self.bias)


def negative_loglikelihood(targets, estimated):
    mean, log_std = ops.split(estimated, 2, axis=-1)
    return ops.mean(log_std + 0.5 * ops.square((targets - mean) / ops.exp(log_std)), axis=-1)


rng = np.random.default_rng(18)
x = rng.uniform(-1, 1, (512, 3)).astype("float32")
y = (x.sum(axis=1, keepdims=True) + rng.normal(0, 0.2, (512, 1))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((3,)),
        DenseVariational(12, 1 / 5120, "tanh"),
        DenseVariational(12, 1 / 5120, "tanh"),
        layers.Dense(2),
    ]
)
model.compile(keras.optimizers.RMSprop(0.005), loss=negative_loglikelihood)
history = model.fit(x, y, batch_size=64, epochs=10, verbose=0)
print("losses", history.history["loss"][0], history.history["loss"][-1])
predicted = np.stack([model.predict(x[:16], verbose=0)[:, 0] for _ in range(8)])
print("mean error", float(np.mean(np.abs(predicted.mean(axis=0) - y[:16, 0]))))
print("predictions differ:", bool(predicted.std(axis=0).max() > 0))
