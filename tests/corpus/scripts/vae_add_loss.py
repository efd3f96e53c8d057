# backends: jax torch
# agrees: trend
"""A variational autoencoder without a train_step: the model adds its divergence with add_loss."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(35)


class Encoder(layers.Layer):
    def __init__(self, latent_dim=4, intermediate_dim=24, name="encoder", **kwargs):
        super().__init__(name=name, **kwargs)
        self.dense_proj = layers.Dense(intermediate_dim, activation="relu")
        self.dense_mean = layers.Dense(latent_dim)
        self.dense_log_var = layers.Dense(latent_dim)
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        x = self.dense_proj(inputs)
        z_mean, z_log_var = self.dense_mean(x), self.dense_log_var(x)
        epsilon = keras.random.normal(ops.shape(z_mean), seed=self.seed_generator)
        return z_mean, z_log_var, z_mean + ops.exp(0.5 * z_log_var) * epsilon


class Decoder(layers.Layer):
    def __init__(self, original_dim, intermediate_dim=24, name="decoder", **kwargs):
        super().__init__(name=name, **kwargs)
        self.dense_proj = layers.Dense(intermediate_dim, activation="relu")
        self.dense_output = layers.Dense(original_dim, activation="sigmoid")

    def call(self, inputs):
        return self.dense_output(self.dense_proj(inputs))


class VariationalAutoEncoder(keras.Model):
    def __init__(self, original_dim, name="autoencoder", **kwargs):
        super().__init__(name=name, **kwargs)
        self.encoder = Encoder()
        self.decoder = Decoder(original_dim)

    def call(self, inputs):
        z_mean, z_log_var, z = self.encoder(inputs)
        reconstructed = self.decoder(z)
        kl_loss = -0.5 * ops.mean(z_log_var - ops.square(z_mean) - ops.exp(z_log_var) + 1)
        self.add_loss(0.05 * kl_loss)
        return reconstructed


rng = np.random.default_rng(35)
x = rng.beta(2, 2, (800, 3)) @ rng.dirichlet(np.ones(3), 20).T
x = x.astype("float32")
vae = VariationalAutoEncoder(20)
vae.compile(
    optimizer=keras.optimizers.Adam(learning_rate=5e-3), loss="mse", metrics=[keras.metrics.MeanAbsoluteError()]
)
vae.fit(x, x, epochs=4, batch_size=64, verbose=2)
print("evaluate", vae.evaluate(x, x, verbose=0))
