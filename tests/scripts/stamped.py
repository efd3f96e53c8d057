"""Trains a few steps; every worker writes down by its own watch when each of them was over: `stamped.py FOLDER`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

import shoal

stamps: list[float] = []


class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        stamps.append(time.time())


keras.utils.set_random_seed(5)
x, y = models.images()
model = models.compile_for_classes(models.dense(), "sgd")
model.fit(np.tile(x, (4, 1, 1, 1)), np.tile(y, 4), batch_size=16, epochs=2, verbose=0, callbacks=[Watch()])
if shoal.rank() < shoal.size():  # not on servers
    (Path(sys.argv[1]) / f"{shoal.rank()}.json").write_text(json.dumps(stamps))
