"""Trains a small model, slowly, for so many epochs or until a file says that it is enough; prints the weights' hash.

until_told.py EPOCHS|FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import models

import shoal


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.0 if epochs else 0.1)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if not epochs and Path(sys.argv[1]).exists():
            self.model.stop_training = True


epochs = int(sys.argv[1]) if sys.argv[1].isdecimal() else None
keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
history = model.fit(x, y, batch_size=16, epochs=epochs or 10_000, verbose=0, callbacks=[Slow()])
if shoal.is_chief():
    print("epochs", len(history.epoch), "weights", models.weights_hash(model), flush=True)
