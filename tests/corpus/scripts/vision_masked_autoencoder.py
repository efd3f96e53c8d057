# backends: tensorflow
# agrees: trend
import tensorflow as tf
import keras
from keras import layers
import numpy as np

# A masked autoencoder: random patches are hidden, the decoder rebuilds them. No call, calculate_loss, nested logs.
keras.utils.set_random_seed(74)
SIZE, PATCH, DIM, MASK = 8, 2, 16, 0.5
NUM_PATCHES = (SIZE // PATCH) ** 2
NUM_MASK = int(MASK * NUM_PATCHES)
rng = np.random.default_rng(74)
grid = np.linspace(0, 3, SIZE)
images = np.sin(grid[None, :, None] * rng.uniform(0.5, 2, (640, 1, 1)) + grid[None, None, :])[..., None].astype(
    "float32"
)


class Patches(layers.Layer):
    def call(self, images):
        patches = tf.image.extract_patches(images, [1, PATCH, PATCH, 1], [1, PATCH, PATCH, 1], [1, 1, 1, 1], "VALID")
        return tf.reshape(patches, (-1, NUM_PATCHES, PATCH * PATCH))


class PatchEncoder(layers.Layer):
    def build(self, input_shape):
        self.projection = layers.Dense(DIM)
        self.position_embedding = layers.Embedding(NUM_PATCHES, DIM)
        self.mask_token = self.add_weight(shape=(1, DIM), initializer="random_normal", name="mask_token")

    def call(self, patches):
        batch_size = tf.shape(patches)[0]
        positions = self.position_embedding(tf.tile(tf.range(NUM_PATCHES)[tf.newaxis], [batch_size, 1]))
        encoded = self.projection(patches) + positions
        order = tf.argsort(tf.random.uniform((batch_size, NUM_PATCHES)), axis=-1)
        hidden, shown = order[:, :NUM_MASK], order[:, NUM_MASK:]
        masked = tf.gather(positions, hidden, axis=1, batch_dims=1) + self.mask_token
        return tf.gather(encoded, shown, axis=1, batch_dims=1), masked, hidden


def transformer(name, outputs=None):
    inputs = layers.Input((None, DIM))
    x = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(2, DIM // 2)(x, x)
    x = x + layers.Dense(DIM, activation="gelu")(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(outputs)(x) if outputs else x, name=name)


class MaskedAutoencoder(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.patch_layer, self.patch_encoder = Patches(), PatchEncoder()
        self.encoder, self.decoder = transformer("encoder"), transformer("decoder", PATCH * PATCH)

    def calculate_loss(self, images, test=False):
        patches = self.patch_layer(images)
        shown, masked, hidden = self.patch_encoder(patches)
        decoded = self.decoder(tf.concat([masked, self.encoder(shown)], axis=1))[:, :NUM_MASK]
        loss_patch = tf.gather(patches, hidden, axis=1, batch_dims=1)
        return self.compute_loss(y=loss_patch, y_pred=decoded), loss_patch, decoded

    def train_step(self, images):
        with tf.GradientTape() as tape:
            total_loss, loss_patch, loss_output = self.calculate_loss(images)
        train_vars = [
            *self.patch_encoder.trainable_variables,
            *self.encoder.trainable_variables,
            *self.decoder.trainable_variables,
        ]
        grads = tape.gradient(total_loss, train_vars)
        self.optimizer.apply_gradients([(g, v) for g, v in zip(grads, train_vars) if g is not None])
        results = {}
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(total_loss)
            else:
                metric.update_state(loss_patch, loss_output)
        for metric in self.metrics:
            results[metric.name] = metric.result()
        return results

    def test_step(self, images):
        total_loss, loss_patch, loss_output = self.calculate_loss(images, test=True)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(total_loss)
            else:
                metric.update_state(loss_patch, loss_output)
        return {metric.name: metric.result() for metric in self.metrics}


train_ds = tf.data.Dataset.from_tensor_slices(images[:512]).shuffle(512).batch(64).prefetch(tf.data.AUTOTUNE)
val_ds = tf.data.Dataset.from_tensor_slices(images[512:]).batch(64)
mae_model = MaskedAutoencoder()
mae_model.compile(optimizer=keras.optimizers.AdamW(learning_rate=5e-3, weight_decay=1e-4), loss="mse", metrics=["mae"])
mae_model.fit(train_ds, epochs=4, validation_data=val_ds, verbose=0)
results = mae_model.evaluate(val_ds, verbose=0)
print("Loss:", float(np.ravel(results)[0]))
