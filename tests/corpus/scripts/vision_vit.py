# backends: jax torch
# agrees: trend
"""A small vision transformer, with patches cut by a layer of its own."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

keras.utils.set_random_seed(1337)

IMAGE_SIZE, PATCH_SIZE, DIM, HEADS, BLOCKS = 8, 2, 32, 2, 1
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=0)


def mlp(x, hidden_units, dropout_rate):
    for units in hidden_units:
        x = layers.Dense(units, activation=keras.activations.gelu)(x)
        x = layers.Dropout(dropout_rate)(x)
    return x


class Patches(layers.Layer):
    def __init__(self, patch_size):
        super().__init__()
        self.patch_size = patch_size

    def call(self, images):
        batch, height, width, channels = ops.shape(images)
        rows, columns = height // self.patch_size, width // self.patch_size
        patches = ops.image.extract_patches(images, size=self.patch_size)
        return ops.reshape(patches, (batch, rows * columns, self.patch_size * self.patch_size * channels))

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size}


class PatchEncoder(layers.Layer):
    def __init__(self, num_patches, dim):
        super().__init__()
        self.num_patches = num_patches
        self.projection = layers.Dense(units=dim)
        self.position_embedding = layers.Embedding(input_dim=num_patches, output_dim=dim)

    def call(self, patch):
        positions = ops.expand_dims(ops.arange(start=0, stop=self.num_patches, step=1), axis=0)
        return self.projection(patch) + self.position_embedding(positions)


def create_vit_classifier():
    inputs = keras.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 1))
    encoded = PatchEncoder(NUM_PATCHES, DIM)(Patches(PATCH_SIZE)(inputs))
    for _ in range(BLOCKS):
        x1 = layers.LayerNormalization(epsilon=1e-6)(encoded)
        attention = layers.MultiHeadAttention(num_heads=HEADS, key_dim=DIM, dropout=0.1)(x1, x1)
        x2 = layers.Add()([attention, encoded])
        x3 = mlp(layers.LayerNormalization(epsilon=1e-6)(x2), [DIM * 2, DIM], 0.1)
        encoded = layers.Add()([x3, x2])
    representation = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(encoded))
    return keras.Model(inputs, layers.Dense(10)(mlp(representation, [64], 0.2)))


vit = create_vit_classifier()
vit.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=3e-3, weight_decay=1e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        keras.metrics.SparseTopKCategoricalAccuracy(5, name="top-5-accuracy"),
    ],
)
checkpoint = keras.callbacks.ModelCheckpoint(
    "best.weights.h5", monitor="val_accuracy", save_best_only=True, save_weights_only=True
)
vit.fit(x_train, y_train, batch_size=128, epochs=8, validation_split=0.1, callbacks=[checkpoint], verbose=2)
vit.load_weights("best.weights.h5")
_, accuracy, top_5 = vit.evaluate(x_test, y_test, verbose=0)
print(f"Test accuracy: {round(accuracy * 100, 2)}%")
print(f"Test top 5 accuracy: {round(top_5 * 100, 2)}%")
