# backends: tensorflow
# agrees: trend
"""VQ-VAE: a codebook with a straight-through estimator, trained inside a train_step, then its codes are modelled."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(36)


class VectorQuantizer(layers.Layer):
    def __init__(self, num_embeddings, embedding_dim, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.embedding_dim, self.num_embeddings, self.beta = embedding_dim, num_embeddings, beta
        self.embeddings = self.add_weight(
            shape=(embedding_dim, num_embeddings), initializer="random_uniform", trainable=True, name="embeddings_vqvae"
        )

    def call(self, x):
        input_shape = tf.shape(x)
        flattened = tf.reshape(x, [-1, self.embedding_dim])
        encodings = tf.one_hot(self.get_code_indices(flattened), self.num_embeddings)
        quantized = tf.reshape(tf.matmul(encodings, self.embeddings, transpose_b=True), input_shape)
        commitment_loss = tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2)
        codebook_loss = tf.reduce_mean((quantized - tf.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment_loss + codebook_loss)
        return x + tf.stop_gradient(quantized - x)

    def get_code_indices(self, flattened_inputs):
        similarity = tf.matmul(flattened_inputs, self.embeddings)
        distances = (
            tf.reduce_sum(flattened_inputs**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.embeddings**2, axis=0)
            - 2 * similarity
        )
        return tf.argmin(distances, axis=1)


def get_vqvae(latent_dim=8, num_embeddings=16):
    inputs = keras.Input(shape=(8, 8, 1))
    x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(inputs)
    encoded = layers.Conv2D(latent_dim, 1, padding="same")(x)
    encoder = keras.Model(inputs, encoded, name="encoder")
    latents = keras.Input(shape=(4, 4, latent_dim))
    x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(latents)
    decoder = keras.Model(latents, layers.Conv2DTranspose(1, 3, padding="same")(x), name="decoder")
    quantized = VectorQuantizer(num_embeddings, latent_dim, name="vector_quantizer")(encoder(inputs))
    return keras.Model(inputs, decoder(quantized), name="vq_vae")


class VQVAETrainer(keras.models.Model):
    def __init__(self, train_variance, **kwargs):
        super().__init__(**kwargs)
        self.train_variance = train_variance
        self.vqvae = get_vqvae()
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.vq_loss_tracker = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.vq_loss_tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            reconstructions = self.vqvae(x)
            reconstruction_loss = tf.reduce_mean((x - reconstructions) ** 2) / self.train_variance
            total_loss = reconstruction_loss + sum(self.vqvae.losses)
        grads = tape.gradient(total_loss, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.vqvae.trainable_variables))
        self.total_loss_tracker.update_state(total_loss)
        self.vq_loss_tracker.update_state(sum(self.vqvae.losses))
        return {"loss": self.total_loss_tracker.result(), "vqvae_loss": self.vq_loss_tracker.result()}


x_train = load_digits().images[..., None].astype("float32") / 16 - 0.5
vqvae_trainer = VQVAETrainer(float(np.var(x_train)))
vqvae_trainer.compile(optimizer=keras.optimizers.Adam(0.003))
vqvae_trainer.fit(x_train, epochs=3, batch_size=64, shuffle=False, verbose=2)

encoder, quantizer = vqvae_trainer.vqvae.get_layer("encoder"), vqvae_trainer.vqvae.get_layer("vector_quantizer")
encoded_outputs = encoder.predict(x_train[:200], verbose=0)
codebook_indices = quantizer.get_code_indices(encoded_outputs.reshape(-1, encoded_outputs.shape[-1])).numpy()
print("codes", codebook_indices.reshape(200, 4, 4).shape)
