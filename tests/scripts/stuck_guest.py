"""Trains until a file says that it is enough. While another file is there, the last of three workers is stuck.

stuck_guest.py ENOUGH STUCK
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import models

import shoal

ENOUGH, STUCK = map(Path, sys.argv[1:])


class Stuck(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.02)
        if shoal.rank() == 2:
            self.stuck_here()

    def stuck_here(self) -> None:
        while STUCK.exists():
            pass

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if ENOUGH.exists():
            self.model.stop_training = True


keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, batch_size=16, epochs=10_000, verbose=0, callbacks=[Stuck()])
