# backends: tensorflow jax
# agrees: trend
"""A tf.data stream that repeats for ever, with steps_per_epoch, validation_steps and validation_freq."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(68)
rng = np.random.default_rng(68)
x = rng.normal(size=(200, 6)).astype("float32")
y = np.abs(x).sum(axis=1, keepdims=True).astype("float32")

train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200, seed=1).repeat().batch(20).prefetch(tf.data.AUTOTUNE)
valid = tf.data.Dataset.from_tensor_slices((x[:40], y[:40])).repeat().batch(20)

model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.RMSprop(0.01), "mae")
history = model.fit(
    train, steps_per_epoch=7, epochs=4, validation_data=valid, validation_steps=2, validation_freq=2, verbose=0
)
print("loss", history.history["loss"], "val_loss", history.history["val_loss"])
print("predictions", model.predict(valid.map(lambda a, b: a), steps=3, verbose=0).shape)
