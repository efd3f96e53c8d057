# backends: tensorflow jax
# agrees: trend
"""A base is trained on one task, frozen for another, and fine-tuned at last with a low learning rate."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(2)
x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype("float32")
old, new = y < 5, y >= 5

base_model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
pretraining = keras.Sequential([layers.Rescaling(1 / 16), base_model, layers.Dense(5, activation="softmax")])
pretraining.compile(keras.optimizers.Adam(5e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
pretraining.fit(x[old], y[old], epochs=8, verbose=0)
print("pretraining accuracy", pretraining.evaluate(x[old], y[old], verbose=0)[1])
pretraining.save("pretrained.keras")

base_model = keras.saving.load_model("pretrained.keras").get_layer("base")
base_model.trainable = False

inputs = keras.Input(shape=(8, 8, 1))
x_ = layers.Rescaling(1.0 / 16)(inputs)
x_ = base_model(x_, training=False)
x_ = layers.Dropout(0.2)(x_)
outputs = layers.Dense(5)(x_)
model = keras.Model(inputs, outputs)
model.summary(show_trainable=True)

model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
print("Fitting the top layer of the model")
model.fit(x[new], y[new] - 5, epochs=4, validation_split=0.1, verbose=2)

base_model.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
print("Fitting the end-to-end model")
model.fit(x[new], y[new] - 5, epochs=3, validation_split=0.1, verbose=2)
print("Test dataset evaluation")
print(model.evaluate(x[new], y[new] - 5, verbose=0))
