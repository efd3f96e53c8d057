# backends: jax tensorflow torch
# agrees: trend
"""A simple convnet that tells handwritten digits apart."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(812)

num_classes = 10
input_shape = (8, 8, 1)

digits = load_digits()
x = np.expand_dims(digits.images.astype("float32") / 16.0, -1)
y = keras.utils.to_categorical(digits.target, num_classes)
x_train, x_test = x[:1400], x[1400:]
y_train, y_test = y[:1400], y[1400:]
print("x_train shape:", x_train.shape)
print(x_train.shape[0], "train samples")
print(x_test.shape[0], "test samples")

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.summary()

model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(5e-3), metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=6, validation_split=0.1)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
