# backends: tensorflow
# agrees: trend
"""Segmentation of round things with a U-Net, data from a PyDataset."""

import random

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1337)

img_size = (16, 16)
num_classes = 3
batch_size = 16


def draw(index):
    """A picture with a disc and a square on it, and what is where."""
    rng = np.random.default_rng(index)
    picture = rng.normal(0, 0.1, (*img_size, 3)).astype("float32")
    target = np.zeros(img_size, "uint8")
    rows, columns = np.mgrid[: img_size[0], : img_size[1]]
    center = rng.integers(4, 12, 2)
    disc = (rows - center[0]) ** 2 + (columns - center[1]) ** 2 < rng.integers(4, 16)
    picture[disc] += (0.8, 0.1, 0.1)
    target[disc] = 1
    top, left = rng.integers(0, 12, 2)
    picture[top : top + 4, left : left + 4] = (0.1, 0.1, 0.8)
    target[top : top + 4, left : left + 4] = 2
    return picture, target


class Shapes(keras.utils.PyDataset):
    def __init__(self, indices, **kwargs):
        super().__init__(**kwargs)
        self.indices = indices

    def __len__(self):
        return len(self.indices) // batch_size

    def __getitem__(self, number):
        drawn = [draw(index) for index in self.indices[number * batch_size : (number + 1) * batch_size]]
        return np.stack([picture for picture, _ in drawn]), np.stack([target for _, target in drawn])


def get_model():
    inputs = keras.Input(shape=(*img_size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous = x
    for filters in (16, 24):
        x = layers.Activation("relu")(x)
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous)
        x = layers.add([x, residual])
        previous = x
    for filters in (24, 16, 8):
        x = layers.Activation("relu")(x)
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(x)
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        x = layers.add([x, residual])
        previous = x
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


samples = list(range(320))
random.Random(1337).shuffle(samples)
train, val = Shapes(samples[:256], workers=2), Shapes(samples[256:])

model = get_model()
model.compile(optimizer=keras.optimizers.Adam(5e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [keras.callbacks.ModelCheckpoint("shapes_segmentation.keras", save_best_only=True)]
model.fit(train, epochs=4, validation_data=val, callbacks=callbacks, verbose=2)

val_preds = model.predict(val, verbose=0)
mask = np.argmax(val_preds[0], axis=-1)
print("mask of", mask.shape, "predictions", val_preds.shape)
