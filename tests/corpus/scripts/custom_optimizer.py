# backends: jax tensorflow torch
# agrees: rounding
"""An optimizer, a regularizer, a constraint, an initializer and an activation of one's own."""

import keras
import numpy as np
from keras import ops


class SignMomentum(keras.optimizers.Optimizer):
    """Momentum, of which only the sign counts."""

    def __init__(self, learning_rate=0.001, beta=0.9, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta = beta

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momenta = [self.add_variable_from_reference(v, name="momentum") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        learning_rate = ops.cast(learning_rate, variable.dtype)
        momentum = self.momenta[self._get_variable_index(variable)]
        self.assign(momentum, self.beta * momentum + (1 - self.beta) * ops.cast(gradient, variable.dtype))
        self.assign_sub(variable, learning_rate * ops.sign(momentum))

    def get_config(self):
        return {**super().get_config(), "beta": self.beta}


class Orthogonal(keras.regularizers.Regularizer):
    def __init__(self, strength):
        self.strength = strength

    def __call__(self, x):
        product = ops.matmul(ops.transpose(x), x)
        return self.strength * ops.mean(ops.square(product - ops.eye(x.shape[-1])))


class Bounded(keras.constraints.Constraint):
    def __call__(self, w):
        return ops.clip(w, -0.5, 0.5)


def staircase(shape, dtype=None):
    return ops.reshape(ops.cos(ops.arange(shape[0] * shape[1], dtype="float32")), shape) * 0.3


keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(256, 8)).astype("float32")
y = np.maximum(x[:, :1], 0) - x[:, 1:2]
model = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(
            12,
            activation=lambda t: t * ops.sigmoid(1.5 * t),
            kernel_initializer=staircase,
            kernel_regularizer=Orthogonal(0.01),
            kernel_constraint=Bounded(),
        ),
        keras.layers.Dense(1),
    ]
)
model.compile(SignMomentum(0.003), "mse")
history = model.fit(x, y, batch_size=32, epochs=5, shuffle=False, verbose=0)
print("loss", history.history["loss"])
print("within bounds:", bool(np.abs(model.layers[0].get_weights()[0]).max() <= 0.5))
