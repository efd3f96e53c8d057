# backends: tensorflow
# agrees: trend
"""Denoising diffusion (DDIM): a noise schedule, a network and its moving average, images generated in a callback."""

import math
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(28)
image_size, batch_size, ema = 8, 64, 0.9
min_signal_rate, max_signal_rate = 0.02, 0.95
images = load_digits().images.astype("float32")[:1280, ..., None] / 16
train_dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(1280, seed=3).batch(batch_size, drop_remainder=True)


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x, embedding_dims=8):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(1000.0), embedding_dims // 2))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, "float32")
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def get_network(image_size, width):
    noisy_images = keras.Input(shape=(image_size, image_size, 1))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = layers.UpSampling2D(size=image_size, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(width, kernel_size=1)(noisy_images), e])
    skip = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    x = layers.AveragePooling2D(2)(skip)
    x = layers.Conv2D(2 * width, 3, padding="same", activation="swish")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(layers.Concatenate()([x, skip]))
    x = layers.Conv2D(1, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self, image_size, width):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = get_network(image_size, width)
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffusion_schedule(self, diffusion_times):
        start_angle, end_angle = math.acos(max_signal_rate), math.acos(min_signal_rate)
        angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def generate(self, num_images, diffusion_steps):
        next_noisy_images = keras.random.normal((num_images, image_size, image_size, 1), seed=1)
        for step in range(diffusion_steps):
            diffusion_times = ops.ones((num_images, 1, 1, 1)) - step / diffusion_steps
            noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
            pred_noises, pred_images = self.denoise(next_noisy_images, noise_rates, signal_rates, training=False)
            next_noise, next_signal = self.diffusion_schedule(diffusion_times - 1 / diffusion_steps)
            next_noisy_images = next_signal * pred_images + next_noise * pred_noises
        return ops.clip(self.normalizer.mean + pred_images * self.normalizer.variance**0.5, 0.0, 1.0)

    def noisy(self, images):
        images = self.normalizer(images, training=True)
        noises = tf.random.normal(tf.shape(images))
        diffusion_times = tf.random.uniform((tf.shape(images)[0], 1, 1, 1))
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        return images, noises, signal_rates * images + noise_rates * noises, noise_rates, signal_rates

    def train_step(self, images):
        images, noises, noisy_images, noise_rates, signal_rates = self.noisy(images)
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=True)
            noise_loss = self.loss(noises, pred_noises)
            image_loss = self.loss(images, pred_images)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
            ema_weight.assign(ema * ema_weight + (1 - ema) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        images, noises, noisy_images, noise_rates, signal_rates = self.noisy(images)
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=False)
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        return {m.name: m.result() for m in self.metrics}

    def plot_images(self, epoch=None, logs=None):
        np.save(f"images_{epoch}.npy", ops.convert_to_numpy(self.generate(4, 5)))


model = DiffusionModel(image_size, 8)
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=5e-3, weight_decay=1e-4), loss=keras.losses.mean_absolute_error
)
model.normalizer.adapt(train_dataset)
model.fit(
    train_dataset,
    epochs=3,
    validation_data=train_dataset.take(4),
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images)],
    verbose=2,
)
model.ema_network.save_weights("ema.weights.h5")
model.ema_network.load_weights("ema.weights.h5")
print("generated", model.generate(2, 4).shape)
