# backends: tensorflow
# agrees: rounding
# updates: 4 a step
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import numpy as np

# A CycleGAN in small: two generators, two discriminators, four optimizers, a persistent tape.
keras.utils.set_random_seed(16)
rng = np.random.default_rng(16)
stripes = np.tile(np.array([0.0, 1.0] * 4), (128, 8, 1))[..., None] + rng.normal(0, 0.1, (128, 8, 8, 1))
bars = np.transpose(stripes, (0, 2, 1, 3)) + rng.normal(0, 0.1, (128, 8, 8, 1))
train = tf.data.Dataset.zip(
    (
        tf.data.Dataset.from_tensor_slices(stripes.astype("float32")).batch(16),
        tf.data.Dataset.from_tensor_slices(bars.astype("float32")).batch(16),
    )
)


def generator(name):
    image = layers.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    x = layers.add([x, layers.Conv2D(8, 3, padding="same", activation="relu")(x)])
    return keras.Model(image, layers.Conv2D(1, 3, padding="same")(x), name=name)


def discriminator(name):
    image = layers.Input((8, 8, 1))
    x = layers.LeakyReLU(0.2)(layers.Conv2D(8, 4, strides=2, padding="same")(image))
    return keras.Model(image, layers.Conv2D(1, 4, padding="same")(x), name=name)


class CycleGan(keras.Model):
    def __init__(self, generator_G, generator_F, discriminator_X, discriminator_Y, lambda_cycle=10.0):
        super().__init__()
        self.gen_G, self.gen_F = generator_G, generator_F
        self.disc_X, self.disc_Y = discriminator_X, discriminator_Y
        self.lambda_cycle = lambda_cycle

    def call(self, inputs):
        return self.disc_X(inputs), self.disc_Y(inputs), self.gen_G(inputs), self.gen_F(inputs)

    def compile(self, gen_G_optimizer, gen_F_optimizer, disc_X_optimizer, disc_Y_optimizer):
        super().compile()
        self.gen_G_optimizer, self.gen_F_optimizer = gen_G_optimizer, gen_F_optimizer
        self.disc_X_optimizer, self.disc_Y_optimizer = disc_X_optimizer, disc_Y_optimizer
        self.cycle_loss_fn = keras.losses.MeanAbsoluteError()
        self.adv_loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, batch_data):
        real_x, real_y = batch_data
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = self.gen_G(real_x, training=True), self.gen_F(real_y, training=True)
            cycled_x, cycled_y = self.gen_F(fake_y, training=True), self.gen_G(fake_x, training=True)
            disc_real_x, disc_fake_x = self.disc_X(real_x, training=True), self.disc_X(fake_x, training=True)
            disc_real_y, disc_fake_y = self.disc_Y(real_y, training=True), self.disc_Y(fake_y, training=True)
            gen_G_loss = self.adv_loss_fn(tf.ones_like(disc_fake_y), disc_fake_y)
            gen_F_loss = self.adv_loss_fn(tf.ones_like(disc_fake_x), disc_fake_x)
            cycle_loss_G = self.cycle_loss_fn(real_y, cycled_y) * self.lambda_cycle
            cycle_loss_F = self.cycle_loss_fn(real_x, cycled_x) * self.lambda_cycle
            total_loss_G, total_loss_F = gen_G_loss + cycle_loss_G, gen_F_loss + cycle_loss_F
            disc_X_loss = self.disc_loss(disc_real_x, disc_fake_x)
            disc_Y_loss = self.disc_loss(disc_real_y, disc_fake_y)
        for optimizer, loss, network in (
            (self.gen_G_optimizer, total_loss_G, self.gen_G),
            (self.gen_F_optimizer, total_loss_F, self.gen_F),
            (self.disc_X_optimizer, disc_X_loss, self.disc_X),
            (self.disc_Y_optimizer, disc_Y_loss, self.disc_Y),
        ):
            grads = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(grads, network.trainable_variables))
        return {"G_loss": total_loss_G, "F_loss": total_loss_F, "D_X_loss": disc_X_loss, "D_Y_loss": disc_Y_loss}

    def disc_loss(self, real, fake):
        return 0.5 * (self.adv_loss_fn(tf.ones_like(real), real) + self.adv_loss_fn(tf.zeros_like(fake), fake))


cycle_gan_model = CycleGan(
    generator("generator_G"),
    generator("generator_F"),
    discriminator("discriminator_X"),
    discriminator("discriminator_Y"),
)
cycle_gan_model.compile(*[keras.optimizers.Adam(learning_rate=2e-3, beta_1=0.5) for _ in range(4)])
cycle_gan_model.fit(train, epochs=3, verbose=2)
cycle_gan_model.gen_G.save_weights("gen_G.weights.h5")
