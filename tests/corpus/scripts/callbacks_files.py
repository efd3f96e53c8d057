# backends: tensorflow jax
# agrees: rounding
"""Callbacks that write: CSVLogger, ModelCheckpoint per epoch, BackupAndRestore, a picture for each epoch."""

import os
import shutil

import keras
import numpy as np

keras.utils.set_random_seed(66)
rng = np.random.default_rng(66)
x = rng.normal(size=(256, 6)).astype("float32")
y = np.tanh(x[:, :1] * x[:, 1:2]).astype("float32")

for folder in ("checkpoints", "pictures"):
    os.makedirs(folder)

model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(16, activation="gelu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Lion(0.003), "mse", metrics=["mae"])


def picture(epoch, logs):
    """Greyscale, as a portable graymap: no package is needed."""
    values = model.predict(x[:64], verbose=0).reshape(8, 8)
    grey = np.clip((values + 1) * 127.5, 0, 255).astype("uint8")
    with open(f"pictures/epoch_{epoch}.pgm", "wb") as file:
        file.write(b"P5 8 8 255\n" + grey.tobytes())


model.fit(
    x,
    y,
    batch_size=32,
    epochs=3,
    shuffle=False,
    validation_split=0.25,
    verbose=0,
    callbacks=[
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("checkpoints/weights.{epoch:02d}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore("backup"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=picture),
    ],
)
print(open("log.csv").read())
print(sorted(os.listdir("checkpoints")), sorted(os.listdir("pictures")))
model.load_weights("checkpoints/weights.01.weights.h5")
print("after the first epoch", model.evaluate(x, y, verbose=0))
shutil.rmtree("pictures")
