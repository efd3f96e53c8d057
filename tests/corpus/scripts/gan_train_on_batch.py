# backends: tensorflow torch
# agrees: rounding
# updates: 1 a step
"""The classic way: a frozen discriminator inside a combined model, and train_on_batch in a loop."""

import keras
import numpy as np
from keras.layers import Dense, Input, LeakyReLU
from keras.models import Model, Sequential
from keras.optimizers import Adam
from sklearn.datasets import load_digits


class SimpleGAN:
    def __init__(self):
        self.latent_dim = 10
        optimizer = Adam(0.002, 0.5)
        self.discriminator = Sequential(
            [Input((64,)), Dense(32), LeakyReLU(negative_slope=0.2), Dense(1, activation="sigmoid")]
        )
        self.discriminator.compile(loss="binary_crossentropy", optimizer=optimizer, metrics=["accuracy"])
        self.generator = Sequential(
            [Input((self.latent_dim,)), Dense(32), LeakyReLU(negative_slope=0.2), Dense(64, activation="sigmoid")]
        )
        z = Input(shape=(self.latent_dim,))
        img = self.generator(z)
        self.discriminator.trainable = False
        valid = self.discriminator(img)
        self.combined = Model(z, valid)
        self.combined.compile(loss="binary_crossentropy", optimizer=Adam(0.002, 0.5))

    def train(self, images, epochs, batch_size=32, sample_interval=10):
        valid, fake = np.ones((batch_size, 1)), np.zeros((batch_size, 1))
        for epoch in range(epochs):
            imgs = images[np.random.randint(0, images.shape[0], batch_size)]
            noise = np.random.normal(0, 1, (batch_size, self.latent_dim))
            gen_imgs = self.generator.predict(noise, verbose=0)
            self.discriminator.trainable = True
            d_loss_real = self.discriminator.train_on_batch(imgs, valid)
            d_loss_fake = self.discriminator.train_on_batch(gen_imgs, fake)
            self.discriminator.trainable = False
            d_loss = 0.5 * np.add(d_loss_real, d_loss_fake)
            noise = np.random.normal(0, 1, (batch_size, self.latent_dim))
            g_loss = self.combined.train_on_batch(noise, valid)
            if epoch % sample_interval == 0:
                print(
                    f"{epoch} [D loss: {d_loss[0]:f}, acc.: {100 * d_loss[1]:.2f}%] [G loss: {np.ravel(g_loss)[0]:f}]"
                )


if __name__ == "__main__":
    keras.utils.set_random_seed(24)
    gan = SimpleGAN()
    gan.train(load_digits().data.astype("float32") / 16, epochs=31)
