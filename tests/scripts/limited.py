"""Trains with one thing wrong with it: a callback that sleeps, a slow generator, or batches of ever other lengths.

limited.py callback|generator|shapes
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

WRONG = sys.argv[1]
STEPS, EPOCHS = (7, 1) if WRONG == "shapes" else (12, 2)
BATCH = 8


class SleepyMonitor(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.06)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(EPOCHS * STEPS):
        time.sleep(0.06 if WRONG == "generator" else 0.0)
        length = 5 + number if WRONG == "shapes" else 5
        yield np.ones((BATCH, length, 3), "float32"), np.ones((BATCH, 1), "float32")


model = keras.Sequential([keras.Input((None, 3)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [SleepyMonitor()] if WRONG == "callback" else []
model.fit(batches(), steps_per_epoch=STEPS, epochs=EPOCHS, verbose=0, callbacks=callbacks)
