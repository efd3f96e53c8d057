# backends: torch
# agrees: trend
# updates: 3 a step
"""VAE-GAN: encoder, decoder and discriminator, each with an optimizer of its own."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import torch
import keras
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(19)
x = load_digits().data.astype("float32") / 16
LATENT = 6


def mlp(inputs, outputs, activation=None):
    return keras.Sequential(
        [layers.Input((inputs,)), layers.Dense(48, activation="relu"), layers.Dense(outputs, activation=activation)]
    )


class VAEGAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = mlp(64, 2 * LATENT)
        self.decoder = mlp(LATENT, 64, "sigmoid")
        self.discriminator = mlp(64, 1)
        self.seeds = keras.random.SeedGenerator(3)
        self.trackers = {name: keras.metrics.Mean(name=name) for name in ("encoder", "decoder", "discriminator")}

    def compile(self, **optimizers):
        super().compile()
        self.optimizers = optimizers

    @property
    def metrics(self):
        return list(self.trackers.values())

    def encode(self, x):
        mean, log_variance = torch.chunk(self.encoder(x), 2, dim=-1)
        noise = keras.random.normal(mean.shape, seed=self.seeds)
        return mean, log_variance, mean + torch.exp(0.5 * log_variance) * noise

    def call(self, x):
        return self.decoder(self.encode(x)[2])

    def step(self, name, loss):
        network = getattr(self, name)
        self.zero_grad()
        loss.backward()
        gradients = [variable.value.grad for variable in network.trainable_weights]
        with torch.no_grad():
            self.optimizers[name].apply(gradients, network.trainable_weights)
        self.trackers[name].update_state(loss)

    def train_step(self, x):
        x = x[0] if isinstance(x, tuple) else x
        crossentropy = keras.losses.BinaryCrossentropy(from_logits=True)
        mean, log_variance, z = self.encode(x)
        rebuilt = self.decoder(z)
        divergence = -0.5 * ops.mean(1 + log_variance - mean**2 - torch.exp(log_variance))
        self.step("encoder", ops.mean((rebuilt - x) ** 2) + 0.01 * divergence)
        rebuilt = self.decoder(self.encode(x)[2])
        fooled = self.discriminator(rebuilt)
        self.step("decoder", ops.mean((rebuilt - x) ** 2) + 0.01 * crossentropy(torch.ones_like(fooled), fooled))
        real, fake = self.discriminator(x), self.discriminator(self.decoder(self.encode(x)[2]).detach())
        self.step(
            "discriminator", crossentropy(torch.ones_like(real), real) + crossentropy(torch.zeros_like(fake), fake)
        )
        return {name: tracker.result() for name, tracker in self.trackers.items()}


model = VAEGAN()
model.compile(**{name: keras.optimizers.Adam(2e-3) for name in ("encoder", "decoder", "discriminator")})
history = model.fit(x, epochs=4, batch_size=64, verbose=0)
for name, values in history.history.items():
    print(name, values[-1])
