"""Models that are hard to cut."""

from __future__ import annotations

from typing import Any

import keras
import models
from keras import layers


def skips() -> keras.Model:
    """Over the cuts go skip connections; BatchNorm, seeded dropout and regularisers are on both sides."""
    image = layers.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(image)
    x = skipped = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.3, seed=5)(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.Add()([x, skipped])
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.GlobalAveragePooling2D()(layers.Add()([x, skipped]))
    return keras.Model(image, layers.Dense(models.CLASSES, kernel_regularizer="l2")(x))


def tied() -> keras.Model:
    """One embedding at both ends."""
    tokens = layers.Input((6,), dtype="int32")
    table = layers.Embedding(20, 8)
    x = table(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(32, activation="gelu")(x))]))
    words = table(AllWords(20)(x))
    scores = layers.Dot(axes=(2, 2))([x, words])
    return keras.Model(tokens, layers.Dense(models.CLASSES)(layers.GlobalAveragePooling1D()(scores)))


class AllWords(layers.Layer):
    """The number of every word, for each sample."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = words

    def call(self, x: Any) -> Any:
        return keras.ops.tile(keras.ops.arange(self.words, dtype="int32")[None], (keras.ops.shape(x)[0], 1))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor((x.shape[0], self.words), "int32")
