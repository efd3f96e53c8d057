# backends: torch
# agrees: trend
"""DDPM on points of a spiral, in PyTorch's style; an averaged copy of the network makes the samples."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(38)
STEPS = 20

turn = np.random.default_rng(38).uniform(0.5, 3, 1024)
points = np.stack([turn * np.cos(2 * turn), turn * np.sin(2 * turn)], axis=1).astype("float32") / 3


class GaussianDiffusion:
    def __init__(self, timesteps=STEPS):
        betas = np.linspace(1e-3, 0.2, timesteps, dtype="float32")
        self.betas = torch.from_numpy(betas)
        self.alphas = 1 - self.betas
        self.cumulative = torch.cumprod(self.alphas, 0)

    def q_sample(self, x, t, noise):
        kept = self.cumulative[t][:, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def p_sample(self, predicted, x, t):
        mean = (x - self.betas[t] / (1 - self.cumulative[t]).sqrt() * predicted) / self.alphas[t].sqrt()
        return mean + (self.betas[t].sqrt() * torch.randn_like(x) if t else 0)


def build_network():
    x, t = keras.Input((2,)), keras.Input((1,))
    h = layers.Concatenate()([x, layers.Rescaling(1 / STEPS)(t)])
    for _ in range(2):
        h = layers.Dense(48, activation="swish")(h)
    return keras.Model([x, t], layers.Dense(2)(h))


class DiffusionModel(keras.Model):
    def __init__(self, network, ema_network, diffusion, ema=0.95):
        super().__init__()
        self.network, self.ema_network = network, ema_network
        self.diffusion, self.ema = diffusion, ema
        self.loss_fn = keras.losses.MeanSquaredError()

    def call(self, x):
        return self.network([x, keras.ops.zeros_like(x[:, :1])])

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        t = torch.randint(0, STEPS, (x.shape[0],))
        noise = torch.randn_like(x)
        self.zero_grad()
        predicted = self.network([self.diffusion.q_sample(x, t, noise), t[:, None].float()], training=True)
        loss = self.loss_fn(noise, predicted)
        loss.backward()
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in self.network.trainable_weights], self.network.trainable_weights)
            for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
                ema_weight.assign(self.ema * ema_weight + (1 - self.ema) * weight)
        return {"noise_loss": loss}

    def generate(self, count):
        x = torch.randn(count, 2)
        with torch.no_grad():
            for t in reversed(range(STEPS)):
                x = self.diffusion.p_sample(self.ema_network([x, torch.full((count, 1), float(t))]), x, t)
        return x.numpy()


network, ema_network = build_network(), build_network()
ema_network.set_weights(network.get_weights())
model = DiffusionModel(network, ema_network, GaussianDiffusion())
model.compile(optimizer=keras.optimizers.Adam(3e-3))
history = model.fit(points, epochs=8, batch_size=64, verbose=0)
print("loss", np.mean(history.history["noise_loss"][-3:]))
samples = model.generate(64)
print("spread of the samples", float(samples.std()))
