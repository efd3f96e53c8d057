# backends: tensorflow
# agrees: trend
# updates: 2 a step
import keras
from keras import layers
from digit_pairs import load_pairs
import tensorflow as tf
import numpy as np

# Conditional GAN: labels are tiled onto the picture as channels.
batch_size, num_classes, image_size, latent_dim = 64, 10, 8, 12
keras.utils.set_random_seed(6)
all_digits, all_labels = load_pairs(num_classes)
dataset = (
    tf.data.Dataset.from_tensor_slices((all_digits, all_labels)).shuffle(buffer_size=1024, seed=1).batch(batch_size)
)
print(f"Shape of training images: {all_digits.shape}")

generator_in_channels = latent_dim + num_classes
discriminator_in_channels = 1 + num_classes
discriminator = keras.Sequential(
    [
        layers.InputLayer((image_size, image_size, discriminator_in_channels)),
        layers.Conv2D(24, (3, 3), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        layers.InputLayer((generator_in_channels,)),
        layers.Dense(4 * 4 * generator_in_channels),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((4, 4, generator_in_channels)),
        layers.Conv2DTranspose(16, (4, 4), strides=(2, 2), padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, (7, 7), padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator, self.generator, self.latent_dim = discriminator, generator, latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self):
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data):
        real_images, one_hot_labels = data
        image_one_hot_labels = keras.ops.repeat(one_hot_labels[:, :, None, None], repeats=[image_size * image_size])
        image_one_hot_labels = keras.ops.reshape(image_one_hot_labels, (-1, image_size, image_size, num_classes))
        batch_size = keras.ops.shape(real_images)[0]
        random_latent_vectors = keras.random.normal((batch_size, self.latent_dim), seed=self.seed_generator)
        random_vector_labels = keras.ops.concatenate([random_latent_vectors, one_hot_labels], axis=1)
        generated_images = self.generator(random_vector_labels)
        fake_image_and_labels = keras.ops.concatenate([generated_images, image_one_hot_labels], -1)
        real_image_and_labels = keras.ops.concatenate([real_images, image_one_hot_labels], -1)
        combined_images = keras.ops.concatenate([fake_image_and_labels, real_image_and_labels], axis=0)
        labels = keras.ops.concatenate([keras.ops.ones((batch_size, 1)), keras.ops.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))
        misleading_labels = keras.ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            fake_images = self.generator(random_vector_labels)
            predictions = self.discriminator(keras.ops.concatenate([fake_images, image_one_hot_labels], -1))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {"g_loss": self.gen_loss_tracker.result(), "d_loss": self.disc_loss_tracker.result()}


cond_gan = ConditionalGAN(discriminator=discriminator, generator=generator, latent_dim=latent_dim)
cond_gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.0005),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.0005),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
cond_gan.fit(dataset, epochs=3, verbose=2)
trained_gen = cond_gan.generator
first_label = keras.utils.to_categorical([3], num_classes)
fake = trained_gen.predict(
    keras.ops.concatenate([keras.random.normal((1, latent_dim), seed=1), first_label], 1), verbose=0
)
print("a three:", fake.shape)
