"""Trains a small model slowly enough to be cut off in the middle; the chief prints the hash of the weights."""

from __future__ import annotations

import sys
import time

import keras
import models

import shoal


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.1)


keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, batch_size=16, epochs=int(sys.argv[1]), verbose=0, callbacks=[Slow()])
if shoal.is_chief():
    print("weights", models.weights_hash(model), "workers", shoal.size(), flush=True)
