# backends: jax tensorflow
# agrees: rounding
"""PixelCNN: masked convolutions, then pixels are drawn one by one."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(57)
data = (load_digits().images[:960, ..., None] > 7).astype("float32")


class PixelConvLayer(layers.Layer):
    def __init__(self, mask_type, **kwargs):
        super().__init__()
        self.mask_type = mask_type
        self.conv = layers.Conv2D(**kwargs)

    def build(self, input_shape):
        self.conv.build(input_shape)
        kernel_shape = ops.shape(self.conv.kernel)
        mask = np.zeros(shape=kernel_shape)
        mask[: kernel_shape[0] // 2, ...] = 1.0
        mask[kernel_shape[0] // 2, : kernel_shape[1] // 2, ...] = 1.0
        if self.mask_type == "B":
            mask[kernel_shape[0] // 2, kernel_shape[1] // 2, ...] = 1.0
        self.mask = mask.astype("float32")

    def call(self, inputs):
        kernel = self.conv.kernel * self.mask
        return ops.relu(ops.conv(inputs, kernel, padding="same") + self.conv.bias)


inputs = keras.Input(shape=(8, 8, 1), batch_size=None)
x = PixelConvLayer(mask_type="A", filters=16, kernel_size=5, padding="same")(inputs)
y = PixelConvLayer(mask_type="B", filters=16, kernel_size=3, padding="same")(x)
x = layers.add([x, y])
out = layers.Conv2D(filters=1, kernel_size=1, strides=1, activation="sigmoid", padding="valid")(x)
pixel_cnn = keras.Model(inputs, out)
pixel_cnn.compile(optimizer=keras.optimizers.RMSprop(learning_rate=0.003), loss="binary_crossentropy")
pixel_cnn.fit(x=data, y=data, batch_size=96, epochs=3, validation_split=0.1, shuffle=False, verbose=2)

batch, rows, cols, channels = 2, 8, 8, 1
pixels = np.zeros(shape=(batch, rows, cols, channels))
for row in range(3):
    for col in range(cols):
        probs = pixel_cnn.predict(pixels, verbose=0)[:, row, col, :]
        pixels[:, row, col, :] = np.ceil(probs - np.random.uniform(size=probs.shape))
print("drawn", pixels.shape)
