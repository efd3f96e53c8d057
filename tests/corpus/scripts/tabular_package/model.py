"""The model of train.py."""

from keras import Sequential, layers, optimizers


def build_model(features, units, learning_rate):
    model = Sequential(
        [layers.Input((features,)), layers.Dense(units, activation="relu"), layers.Dense(1, activation="sigmoid")]
    )
    model.compile(optimizers.Adagrad(learning_rate), "binary_crossentropy", metrics=["accuracy"])
    return model
