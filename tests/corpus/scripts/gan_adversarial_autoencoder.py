# backends: tensorflow
# agrees: rounding
# updates: 3 a step
import keras
import numpy as np
import tensorflow as tf
from keras import layers

# Adversarial autoencoder. The samples of the prior come with the data, so a run can be repeated exactly.
keras.utils.set_random_seed(23)
rng = np.random.default_rng(23)
x = rng.uniform(0, 1, (256, 4)).astype("float32") @ rng.uniform(0, 1, (4, 16)).astype("float32")
prior = rng.normal(size=(256, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, prior)).batch(32)


class AdversarialAutoencoder(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = keras.Sequential([layers.Input((16,)), layers.Dense(24, activation="tanh"), layers.Dense(3)])
        self.decoder = keras.Sequential([layers.Input((3,)), layers.Dense(24, activation="tanh"), layers.Dense(16)])
        self.critic = keras.Sequential([layers.Input((3,)), layers.Dense(24, activation="tanh"), layers.Dense(1)])
        self.reconstruction = keras.metrics.Mean(name="reconstruction")
        self.regularization = keras.metrics.Mean(name="regularization")

    def compile(self, ae_optimizer, critic_optimizer, encoder_optimizer, **kwargs):
        super().compile(**kwargs)
        self.ae_optimizer = ae_optimizer
        self.critic_optimizer = critic_optimizer
        self.encoder_optimizer = encoder_optimizer
        self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.reconstruction, self.regularization]

    def train_step(self, data):
        x, prior = data
        ae_weights = self.encoder.trainable_variables + self.decoder.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.decoder(self.encoder(x)) - x))
        self.ae_optimizer.apply_gradients(zip(tape.gradient(loss, ae_weights), ae_weights))
        with tf.GradientTape() as tape:
            fake, real = self.critic(self.encoder(x)), self.critic(prior)
            critic_loss = self.bce(tf.ones_like(real), real) + self.bce(tf.zeros_like(fake), fake)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, weights), weights))
        with tf.GradientTape() as tape:
            fake = self.critic(self.encoder(x))
            encoder_loss = self.bce(tf.ones_like(fake), fake)
        weights = self.encoder.trainable_variables
        self.encoder_optimizer.apply_gradients(zip(tape.gradient(encoder_loss, weights), weights))
        self.reconstruction.update_state(loss)
        self.regularization.update_state(encoder_loss)
        return {m.name: m.result() for m in self.metrics}


model = AdversarialAutoencoder()
model.compile(keras.optimizers.Adam(0.005), keras.optimizers.Adam(0.002), keras.optimizers.SGD(0.01))
history = model.fit(data, epochs=4, verbose=0)
print(history.history)
codes = model.encoder.predict(x, verbose=0)
print("codes: mean", float(codes.mean()), "deviation", float(codes.std()))
