# backends: jax torch
# agrees: rounding
"""A convolutional autoencoder, first on clean pictures, then on noisy ones."""

import numpy as np
from keras import layers
from keras.models import Model
import keras
from sklearn.datasets import load_digits


def preprocess(array):
    array = array.astype("float32") / 16.0
    return np.reshape(array, (len(array), 8, 8, 1))


def noise(array):
    rng = np.random.RandomState(6)
    noisy_array = array + 0.4 * rng.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0).astype("float32")


def report(title, array1, array2):
    print(title, "mean difference", float(np.mean(np.abs(array1 - array2))))


keras.utils.set_random_seed(6)
data = preprocess(load_digits().data)
train_data, test_data = data[:1440], data[1440:]
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)
report("noise", test_data, noisy_test_data)

input = layers.Input(shape=(8, 8, 1))
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(input)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = Model(input, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

autoencoder.fit(
    x=train_data,
    y=train_data,
    epochs=3,
    batch_size=120,
    shuffle=False,
    validation_data=(test_data, test_data),
    verbose=2,
)
report("clean", test_data, autoencoder.predict(test_data, verbose=0))
autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=4,
    batch_size=120,
    shuffle=False,
    validation_data=(noisy_test_data, test_data),
    verbose=2,
)
predictions = autoencoder.predict(noisy_test_data, verbose=0)
report("denoised", test_data, predictions)
np.save("denoised.npy", predictions[:10])
