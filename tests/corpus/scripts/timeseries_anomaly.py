# backends: jax
# agrees: trend
"""Anomalies: a convolutional autoencoder of normal days, and a threshold on what it can't rebuild."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(90)
rng = np.random.default_rng(90)
TIME_STEPS = 32

t = np.arange(1500)
training = np.sin(2 * np.pi * t / 50) + 0.1 * rng.normal(size=t.shape)
test = training.copy()
test[700:730] += 2.5
training_mean, training_std = training.mean(), training.std()
print("Number of training samples:", len(training))


def create_sequences(values, time_steps=TIME_STEPS):
    return np.stack([values[i : (i + time_steps)] for i in range(len(values) - time_steps + 1)])[..., None]


x_train = create_sequences((training - training_mean) / training_std)
print("Training input shape: ", x_train.shape)

model = keras.Sequential(
    [
        layers.Input(shape=(x_train.shape[1], x_train.shape[2])),
        layers.Conv1D(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.1),
        layers.Conv1D(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mse")
history = model.fit(
    x_train,
    x_train,
    epochs=5,
    batch_size=128,
    validation_split=0.1,
    callbacks=[keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min")],
    verbose=2,
)
x_train_pred = model.predict(x_train, verbose=0)
train_mae_loss = np.mean(np.abs(x_train_pred - x_train), axis=1)
threshold = np.max(train_mae_loss)
x_test = create_sequences((test - training_mean) / training_std)
test_mae_loss = np.mean(np.abs(model.predict(x_test, verbose=0) - x_test), axis=1).reshape(-1)
anomalies = test_mae_loss > threshold
print("Reconstruction error threshold: ", threshold)
print("anomalies were found:", bool(anomalies[690:730].any()))
