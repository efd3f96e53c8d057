"""Trains a model of a megabyte or two; counts what leaves its host by the cable while enough others train along.

cable.py EPOCHS|FILE    for so many epochs, or until the file is there and two more epochs have been counted
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import models
from keras import layers

import shoal

SENT = Path("/sys/class/net/cable/statistics/tx_bytes")
STEPS, COUNTED = 10, 2  # per epoch, and epochs


class Count(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.marks: list[int] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.0 if epochs or self.marks else 0.2)  # until the others have come

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if not epochs and shoal.is_chief() and (self.marks or Path(sys.argv[1]).exists()):
            self.marks.append(int(SENT.read_text()))

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if len(self.marks) > COUNTED:
            self.model.stop_training = True


epochs = int(sys.argv[1]) if sys.argv[1].isdecimal() else None
keras.utils.set_random_seed(5)
network = [layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(5000, activation="tanh"), layers.Dense(5)]
model = models.compile_for_classes(keras.Sequential(network), "sgd")
x, y = models.images(16 * STEPS)
count = Count()
history = model.fit(x, y, batch_size=16, epochs=epochs or 10_000, verbose=0, callbacks=[count])
if shoal.is_chief():
    sent = count.marks[COUNTED] - count.marks[0] if count.marks else 0
    vectors = sent / (COUNTED * STEPS * 4 * model.count_params())
    print("epochs", len(history.epoch), "weights", models.weights_hash(model), "vectors", f"{vectors:.3f}", flush=True)
