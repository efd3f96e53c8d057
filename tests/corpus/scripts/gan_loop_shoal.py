# backends: tensorflow
# agrees: rounding
# updates: 2 a step
"""A GAN in a loop of its own: one decorated step that applies two optimizers. The noise comes with the data."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import shoal
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(72)
NOISE = 8
images = (load_digits().data[:1024] / 16).astype("float32")
noise = np.random.default_rng(72).normal(size=(1024, 2 * NOISE)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images, noise)).batch(64)

discriminator = keras.Sequential([layers.Input((64,)), layers.Dense(32), layers.LeakyReLU(0.2), layers.Dense(1)])
generator = keras.Sequential([layers.Input((NOISE,)), layers.Dense(32, "relu"), layers.Dense(64, "sigmoid")])
d_optimizer, g_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)


@shoal.step(generator, discriminator)
def train_step(real_images, noise):
    first, second = tf.split(noise, 2, axis=1)
    combined = tf.concat([generator(first), real_images], axis=0)
    size = tf.shape(real_images)[0]
    labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
    with tf.GradientTape() as tape:
        d_loss = loss_fn(labels, discriminator(combined))
    grads = tape.gradient(d_loss, discriminator.trainable_weights)
    d_optimizer.apply_gradients(zip(grads, discriminator.trainable_weights))
    with tf.GradientTape() as tape:
        g_loss = loss_fn(tf.zeros((size, 1)), discriminator(generator(second)))
    grads = tape.gradient(g_loss, generator.trainable_weights)
    g_optimizer.apply_gradients(zip(grads, generator.trainable_weights))
    return d_loss, g_loss


for epoch in range(3):
    for real_images, draws in shoal.batches(dataset):
        d_loss, g_loss = train_step(real_images, draws)
    print(f"discriminator loss at epoch {epoch}: {float(d_loss):.3f}")
    print(f"adversarial loss at epoch {epoch}: {float(g_loss):.3f}")
generator.save_weights("generator.weights.h5")
