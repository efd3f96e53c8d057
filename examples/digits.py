"""A small convolutional net on scikit-learn's handwritten digits. Plain Keras: it knows nothing of Shoal.

    python examples/digits.py [FOLDER]                  on one machine, as ever
    shoal run -n 4 examples/digits.py [FOLDER]          the same script on four workers

Writes FOLDER/digits.weights.h5 and FOLDER/log.csv (here, if no folder is given).
"""

import sys
import time
from pathlib import Path

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Speed(keras.callbacks.Callback):
    """Adds samples per second to an epoch's logs; the time for validation does not count."""

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.seconds = time.perf_counter() - self.began

    def on_epoch_end(self, epoch, logs=None):
        logs["samples_per_second"] = len(x_train) / self.seconds


folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=261, random_state=0)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        layers.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=128,
    epochs=15,
    validation_data=(x_test, y_test),
    callbacks=[Speed(), keras.callbacks.CSVLogger(folder / "log.csv")],
)
model.save_weights(folder / "digits.weights.h5")
