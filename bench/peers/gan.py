"""GANs with two optimizers in one `train_step`, as scripts for each backend have them. They know nothing of Shoal.

`gan` is convolutional, as in the guides of Keras; `dense-gan` has 2.7 M parameters and little arithmetic for each.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

LATENT, PIXELS = 128, 784
SAME = {"padding": "same"}
DISCRIMINATORS = {
    "gan": lambda: [
        layers.Input((28, 28, 1)),
        layers.Conv2D(32, 3, strides=2, activation="leaky_relu", **SAME),
        layers.Conv2D(64, 3, strides=2, activation="leaky_relu", **SAME),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    "dense-gan": lambda: [
        layers.Input((PIXELS,)),
        layers.Dense(1024, "relu"),
        layers.Dense(512, "relu"),
        layers.Dense(1),
    ],
}
GENERATORS = {
    "gan": lambda: [
        layers.Input((LATENT,)),
        layers.Dense(7 * 7 * 64, "leaky_relu"),
        layers.Reshape((7, 7, 64)),
        layers.Conv2DTranspose(64, 4, strides=2, activation="leaky_relu", **SAME),
        layers.Conv2DTranspose(32, 4, strides=2, activation="leaky_relu", **SAME),
        layers.Conv2D(1, 7, activation="sigmoid", **SAME),
    ],
    "dense-gan": lambda: [
        layers.Input((LATENT,)),
        layers.Dense(512, "relu"),
        layers.Dense(1024, "relu"),
        layers.Dense(PIXELS),
    ],
}


class Networks(keras.Model):
    """Discriminator, generator and their losses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(DISCRIMINATORS[kind]())
        self.generator = keras.Sequential(GENERATORS[kind]())
        self.numbers = keras.random.SeedGenerator(1)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")
        self.d_optimizer = keras.optimizers.Adam(1e-4)
        self.g_optimizer = keras.optimizers.Adam(1e-4)
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def made(self, real: Any) -> Any:
        return self.generator(keras.random.normal((ops.shape(real)[0], LATENT), seed=self.numbers), training=True)

    def loss_of_discriminator(self, real: Any) -> Any:
        fake = ops.stop_gradient(self.made(real))
        right = ops.mean(ops.softplus(-self.discriminator(real, training=True)))
        return right + ops.mean(ops.softplus(self.discriminator(fake, training=True)))

    def loss_of_generator(self, real: Any) -> Any:
        return ops.mean(ops.softplus(-self.discriminator(self.made(real), training=True)))


class InPlace(Networks):
    """On TensorFlow and PyTorch, where optimizers change weights where they are."""

    def train_step(self, real: Any) -> Any:
        d_loss = self.improve(self.discriminator, self.d_optimizer, self.loss_of_discriminator, real)
        g_loss = self.improve(self.generator, self.g_optimizer, self.loss_of_generator, real)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}

    def improve(self, network: Any, optimizer: Any, loss_of: Any, real: Any) -> Any:
        weights = network.trainable_weights
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = loss_of(real)
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss
        self.zero_grad()
        loss = loss_of(real)
        loss.backward()
        optimizer.apply([weight.value.grad for weight in weights], weights)
        return loss.detach()


class Both(keras.optimizers.Optimizer):
    """On JAX a step's state has the variables of one optimizer: this one has those of two."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(1e-4)
        self.first, self.second = first, second

    @property
    def variables(self) -> list[Any]:
        return [*self.first.variables, *self.second.variables]


class Stateless(Networks):
    """On JAX."""

    def train_step(self, state: Any, real: Any) -> Any:
        import jax

        trainable, others, slots, metrics = state
        count, first = len(self.discriminator.trainable_variables), len(self.d_optimizer.variables)
        critic, maker = trainable[:count], trainable[count:]

        def run(loss_of: Any, critic: Any, maker: Any, others: Any) -> Any:
            variables = [*self.trainable_variables, *self.non_trainable_variables]
            with keras.StatelessScope(list(zip(variables, [*critic, *maker, *others], strict=True))) as scope:
                loss = loss_of(real)
            return loss, [scope.get_current_value(v) for v in self.non_trainable_variables]

        (d_loss, others), gradients = jax.value_and_grad(
            lambda weights: run(self.loss_of_discriminator, weights, maker, others), has_aux=True
        )(critic)
        critic, d_slots = self.d_optimizer.stateless_apply(slots[:first], gradients, critic)
        (g_loss, others), gradients = jax.value_and_grad(
            lambda weights: run(self.loss_of_generator, critic, weights, others), has_aux=True
        )(maker)
        maker, g_slots = self.g_optimizer.stateless_apply(slots[first:], gradients, maker)
        count = len(self.d_loss.variables)
        d_metrics = self.d_loss.stateless_update_state(metrics[:count], d_loss)
        g_metrics = self.g_loss.stateless_update_state(metrics[count:], g_loss)
        logs = {"d_loss": self.d_loss.stateless_result(d_metrics), "g_loss": self.g_loss.stateless_result(g_metrics)}
        return logs, (critic + maker, others, d_slots + g_slots, [*d_metrics, *g_metrics])


def build(kind: str) -> Any:
    """Compiled."""
    if keras.backend.backend() != "jax":
        model = InPlace(kind)
        model.compile()
        return model
    model = Stateless(kind)
    model.d_optimizer.build(model.discriminator.trainable_variables)
    model.g_optimizer.build(model.generator.trainable_variables)
    both = Both(model.d_optimizer, model.g_optimizer)
    both.built = True
    model.compile(both)
    return model
