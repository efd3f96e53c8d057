"""Small models and data for the scripts that tests run, on one worker or many."""

from __future__ import annotations

import hashlib

import keras
import numpy as np
from keras import layers

SAMPLES, CLASSES = 50, 5  # with a batch of 16 the last batch has 2 samples: fewer than workers or pieces
WHOLE_BATCHES = 48  # a program is compiled for every size of a piece: this many need one, where sizes do not matter


def images(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(samples, 8, 8, 1)).astype("float32"), rng.integers(0, CLASSES, samples)


def sentences(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    return rng.integers(0, 20, (samples, 6)), rng.integers(0, CLASSES, samples)


def dense() -> keras.Model:
    return keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(16, activation="tanh"), layers.Dense(CLASSES)]
    )


def wide() -> keras.Model:
    """Dense layers, large enough for the exchange of large vectors."""
    return keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(2000, activation="tanh"), layers.Dense(CLASSES)]
    )


def convolution() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def dropout_and_batchnorm() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Flatten(),
            layers.Dropout(0.4),
            layers.Dense(CLASSES),
        ]
    )


def embedding_and_lstm() -> keras.Model:
    return keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8), layers.LSTM(8), layers.Dense(CLASSES)])


def embedding_and_attention() -> keras.Model:
    tokens = layers.Input((6,))
    embedded = layers.Embedding(20, 8)(tokens)
    attended = layers.MultiHeadAttention(2, 4)(embedded, embedded)
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(attended)))


def compile_for_classes(model: keras.Model, optimizer: keras.optimizers.Optimizer, **settings: object) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **settings)
    return model


def weights_hash(model: keras.Model) -> str:
    """Of the weights and of the optimizer's state."""
    digest = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        if not variable.path.endswith("learning_rate"):
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    return digest.hexdigest()
