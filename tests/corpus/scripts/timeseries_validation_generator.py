# backends: torch
# agrees: rounding
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

# A generator as validation data: each epoch goes on where the last one stopped.
keras.utils.set_random_seed(2)


def batches(start):
    number = start
    while True:
        x = np.full((16, 4), number % 10, "float32") + np.arange(4, dtype="float32")
        yield x, x.sum(axis=1, keepdims=True)
        number += 1


model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")
history = model.fit(batches(0), steps_per_epoch=6, validation_data=batches(1), validation_steps=4, epochs=4, verbose=0)
print("loss", history.history["loss"])
print("val_loss", history.history["val_loss"])
