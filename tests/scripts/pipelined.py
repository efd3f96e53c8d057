"""Trains models in stages and writes the hashes of their weights: `pipelined.py OUT CASE...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from pipelined_models import skips, tied

import shoal

CASES = {
    "skips": (skips, models.images, lambda: keras.optimizers.Adam(0.01)),
    "tied": (tied, models.sentences, lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0)),
    "wide": (models.wide, models.images, lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
}


class Slower(keras.callbacks.Callback):
    """Changes the learning rate, as ReduceLROnPlateau does."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.005


def train(case: str) -> dict[str, Any]:
    make, data, optimizer = CASES[case]
    keras.utils.set_random_seed(11)
    model = models.compile_for_classes(make(), optimizer(), metrics=["accuracy"])
    x, y = data(models.SAMPLES)
    weights = np.linspace(0.5, 1.5, len(x))
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=2,
        verbose=0,
        sample_weight=weights,
        validation_data=(x[:20], y[:20]),
        callbacks=[Slower()],
    )
    told = {name: [float(value).hex() for value in values] for name, values in history.history.items()}
    first = models.weights_hash(model)
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)  # from the optimizer's state
    return {"weights": first, "again": models.weights_hash(model), "history": told, "size": shoal.size()}


def main(out: Path, cases: list[str]) -> None:
    hashes = {case: train(case) for case in cases}
    out.mkdir(exist_ok=True)
    (out / f"{shoal.rank()}.json").write_text(json.dumps(hashes))


main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
