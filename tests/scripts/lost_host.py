"""Trains a small model for some epochs, prints the weights' hash; slowly, if there is a folder to tell how far it is,
and after some epochs so slowly that it is not at its end before it is told to hurry.

lost_host.py EPOCHS [FOLDER]     until there is a file `word-hurry` in it
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import keras
import models

import shoal

shoal.rank()  # who asks handles its files itself
epochs, folder = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None


class Told(keras.callbacks.Callback):
    pause = 0.05

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        until = time.monotonic() + self.pause
        while folder and not (Path(folder) / "word-hurry").exists() and time.monotonic() < until:
            time.sleep(0.05)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.pause = 0.05 if epoch < epochs // 2 else 2.0

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if folder:
            (Path(folder) / f"epoch-{os.getpid()}").write_text(str(epoch))


keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[Told()])
if shoal.is_chief():
    print("weights", models.weights_hash(model), flush=True)
