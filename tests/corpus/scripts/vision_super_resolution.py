# backends: tensorflow
# agrees: rounding
"""Sub-pixel super-resolution with tf.data, a callback that reports PSNR, and best weights restored by path."""

import math
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(5)

crop_size, upscale_factor, batch_size = 24, 3, 8
input_size = crop_size // upscale_factor

rng = np.random.default_rng(5)
axis = np.linspace(0, 6, crop_size)
phases = rng.uniform(0, 6, (96, 2))
pictures = 0.5 + 0.5 * np.sin(axis[None, :, None] + phases[:, :1, None]) * np.cos(
    axis[None, None, :] + phases[:, 1:, None]
)
pictures = pictures[..., None].astype("float32")


def process_input(image):
    return tf.image.resize(image, [input_size, input_size], method="area")


dataset = tf.data.Dataset.from_tensor_slices(pictures).batch(batch_size)
train_ds = dataset.take(10).map(lambda image: (process_input(image), image)).prefetch(4)
valid_ds = dataset.skip(10).map(lambda image: (process_input(image), image)).prefetch(4)


class DepthToSpace(layers.Layer):
    def __init__(self, block_size):
        super().__init__()
        self.block_size = block_size

    def call(self, inputs):
        batch, height, width, depth = ops.shape(inputs)
        depth = depth // self.block_size**2
        x = ops.reshape(inputs, [batch, height, width, self.block_size, self.block_size, depth])
        x = ops.transpose(x, [0, 1, 3, 2, 4, 5])
        return ops.reshape(x, [batch, height * self.block_size, width * self.block_size, depth])


def get_model(upscale_factor=3, channels=1):
    conv_args = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
    inputs = keras.Input(shape=(None, None, channels))
    x = layers.Conv2D(16, 5, **conv_args)(inputs)
    x = layers.Conv2D(16, 3, **conv_args)(x)
    x = layers.Conv2D(channels * (upscale_factor**2), 3, **conv_args)(x)
    return keras.Model(inputs, DepthToSpace(upscale_factor)(x))


class ESPCNCallback(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []

    def on_epoch_end(self, epoch, logs=None):
        print(f"Mean PSNR for epoch: {np.mean(self.psnr):.2f}")

    def on_test_batch_end(self, batch, logs=None):
        self.psnr.append(10 * math.log10(1 / logs["loss"]))


checkpoint_filepath = "tmp/checkpoint.keras"
callbacks = [
    ESPCNCallback(),
    keras.callbacks.EarlyStopping(monitor="loss", patience=10),
    keras.callbacks.ModelCheckpoint(checkpoint_filepath, monitor="loss", mode="min", save_best_only=True),
]
model = get_model(upscale_factor)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.002), loss=keras.losses.MeanSquaredError())
model.fit(train_ds, epochs=5, callbacks=callbacks, validation_data=valid_ds, verbose=2)
model.load_weights(checkpoint_filepath)
print("validation loss", model.evaluate(valid_ds, verbose=0))
