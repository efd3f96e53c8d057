"""Trains every kind of model for a few steps and writes the hashes of their weights: `same_bits.py OUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import models

import shoal

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5),
}
CASES = [
    (models.dense, models.images, "momentum"),
    (models.convolution, models.images, "adam"),
    (models.dropout_and_batchnorm, models.images, "clipped"),
    (models.embedding_and_lstm, models.sentences, "adam"),
    (models.embedding_and_attention, models.sentences, "momentum"),
]


def main(out: Path) -> None:
    hashes = {}
    for make, data, optimizer in CASES:
        keras.utils.set_random_seed(11)
        model = models.compile_for_classes(make(), OPTIMIZERS[optimizer](), metrics=["accuracy"])
        x, y = data()
        history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x[:20], y[:20]))
        told = {name: [float(value).hex() for value in values] for name, values in history.history.items()}
        hashes[make.__name__] = {"weights": models.weights_hash(model), "history": told}
    out.with_suffix(f".{shoal.rank()}.json").write_text(json.dumps(hashes))


main(Path(sys.argv[1]))
