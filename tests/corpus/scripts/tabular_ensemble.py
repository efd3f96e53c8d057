# backends: tensorflow
# agrees: trend
"""An ensemble: five members trained one after the other, saved, loaded, and averaged in one model."""

import os
import keras
import numpy as np
from keras import layers
from sklearn.datasets import make_moons

keras.utils.set_random_seed(0)
X, y = make_moons(n_samples=500, noise=0.25, random_state=0)
X_train, X_test, y_train, y_test = X[:400], X[400:], y[:400], y[400:]

if not os.path.exists("ensemble"):
    os.mkdir("ensemble")


def member(width):
    model = keras.Sequential(
        [layers.Input((2,)), layers.Dense(width, activation="relu"), layers.Dense(1, activation="sigmoid")]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss="binary_crossentropy", metrics=["accuracy"])
    return model


for number, width in enumerate([8, 12, 16, 20]):
    model = member(width)
    bag = np.random.choice(len(X_train), len(X_train))
    model.fit(X_train[bag], y_train[bag], epochs=6, batch_size=20, verbose=0)
    model.save(f"ensemble/member_{number}.keras")
    print("member", number, "accuracy", model.evaluate(X_test, y_test, verbose=0)[1])

members = [keras.saving.load_model(os.path.join("ensemble", name)) for name in sorted(os.listdir("ensemble"))]
for number, loaded in enumerate(members):
    loaded.name = f"member_{number}"
    loaded.trainable = False
inputs = layers.Input((2,))
outputs = layers.Average()([loaded(inputs) for loaded in members])
ensemble = keras.Model(inputs, outputs)
ensemble.compile(loss="binary_crossentropy", metrics=["accuracy"])
print("ensemble accuracy", ensemble.evaluate(X_test, y_test, verbose=0)[1])
