# backends: torch
# agrees: rounding
"""Next-frame prediction with ConvLSTM2D layers; frames are shifted by a helper."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(43)
rng = np.random.default_rng(43)
dataset = np.zeros((64, 6, 8, 8, 1), "float32")
for film in dataset:
    row, column, down, right = rng.integers(0, 8, 2).tolist() + rng.integers(-1, 2, 2).tolist()
    for time, frame in enumerate(film):
        frame[(row + time * down) % 8, (column + time * right) % 8] = 1.0


def create_shifted_frames(data):
    return data[:, 0 : data.shape[1] - 1, :, :], data[:, 1 : data.shape[1], :, :]


x_train, y_train = create_shifted_frames(dataset[:48])
x_val, y_val = create_shifted_frames(dataset[48:])
inp = layers.Input(shape=(None, *x_train.shape[2:]))
x = layers.ConvLSTM2D(filters=4, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu")(inp)
x = layers.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
model = keras.models.Model(inp, x)
model.compile(loss=keras.losses.binary_crossentropy, optimizer=keras.optimizers.Adam(0.01))
model.fit(
    x_train,
    y_train,
    batch_size=8,
    epochs=2,
    shuffle=False,
    validation_data=(x_val, y_val),
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=10),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=5),
    ],
    verbose=2,
)
frames = x_val[0][:3]
for _ in range(2):
    new_prediction = model.predict(np.expand_dims(frames, axis=0), verbose=0)
    frames = np.concatenate((frames, new_prediction[0][-1:]), axis=0)
print("frames", frames.shape)
