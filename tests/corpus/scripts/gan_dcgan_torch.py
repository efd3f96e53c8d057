# backends: torch
# agrees: trend
# updates: 2 a step
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from keras import layers
from sklearn.datasets import load_digits

# A GAN in PyTorch's style: backward(), gradients from the variables, optimizer.apply.
keras.utils.set_random_seed(2)
LATENT = 12
images = load_digits().data.astype("float32") / 16

discriminator = keras.Sequential(
    [layers.Input((64,)), layers.Dense(48), layers.LeakyReLU(0.2), layers.Dense(1)], name="discriminator"
)
generator = keras.Sequential(
    [layers.Input((LATENT,)), layers.Dense(48), layers.LeakyReLU(0.2), layers.Dense(64, "sigmoid")], name="generator"
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.built = True

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def call(self, latent):
        return self.generator(latent)

    def train_step(self, real_images):
        if isinstance(real_images, (tuple, list)):
            real_images = real_images[0]
        batch_size = real_images.shape[0]
        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        combined = torch.concat([self.generator(noise), real_images], dim=0)
        labels = torch.concat([torch.ones((batch_size, 1)), torch.zeros((batch_size, 1))], dim=0)

        self.zero_grad()
        d_loss = self.loss_fn(labels, self.discriminator(combined))
        d_loss.backward()
        grads = [v.value.grad for v in self.discriminator.trainable_weights]
        with torch.no_grad():
            self.d_optimizer.apply(grads, self.discriminator.trainable_weights)

        noise = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        misleading_labels = torch.zeros((batch_size, 1))
        self.zero_grad()
        g_loss = self.loss_fn(misleading_labels, self.discriminator(self.generator(noise)))
        g_loss.backward()
        grads = [v.value.grad for v in self.generator.trainable_weights]
        with torch.no_grad():
            self.g_optimizer.apply(grads, self.generator.trainable_weights)

        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


dataset = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.from_numpy(images)), batch_size=64, shuffle=True
)
gan = GAN(discriminator, generator, LATENT)
gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.001),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.001),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = gan.fit(dataset, epochs=3, verbose=2)
samples = gan.predict(torch.randn(4, LATENT), verbose=0)
print("samples", samples.shape)
