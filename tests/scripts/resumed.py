"""Two fits with an evaluation between them; stops dead in the second one if a file says so; writes what came out.

resumed.py OUT.json [STEP]      at this step of the second fit, wait to be killed
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import keras
import models
import numpy as np

import shoal

out, stop = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None


class Halts(keras.callbacks.Callback):
    """Trains up to a step and then waits for its end."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        Halts.steps += 1
        if Halts.steps == stop:
            out.with_suffix(".halted").touch()
            time.sleep(600)


keras.utils.set_random_seed(3)
model = keras.Sequential(
    [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(5)]
)
models.compile_for_classes(model, keras.optimizers.SGD(0.05, momentum=0.9), metrics=["accuracy"])
x, y = models.images()
x, y = np.tile(x, (4, 1, 1, 1)), np.tile(y, 4)
first = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
tested = model.evaluate(x, y, verbose=0, return_dict=True)
plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=1.0)
second = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[plateau, Halts()], validation_split=0.2)
if shoal.is_chief():
    found = {
        "weights": models.weights_hash(model),
        "first": first.history,
        "tested": tested,
        "second": second.history,
    }
    out.write_text(json.dumps(found, default=float))
