"""Trains a small model for some epochs, prints the weights' hash; slowly, if there is a folder to tell how far it is.

lost_host.py EPOCHS [FOLDER]     until there is a file `hurry` in it
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
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.05 if folder and not (Path(folder) / "hurry").exists() else 0.0)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if folder:
            (Path(folder) / f"epoch-{os.getpid()}").write_text(str(epoch))


keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[Told()])
if shoal.is_chief():
    print("weights", models.weights_hash(model), flush=True)
