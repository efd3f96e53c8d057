"""Trains while one worker, from some step on, takes longer for every sample; tells who had how many samples after that.

replanned.py STEPS SECONDS_PER_SAMPLE
"""

from __future__ import annotations

import sys
import time
from typing import Any

import keras
import models
import numpy as np

import shoal
from shoal import session

STEPS, SECONDS = int(sys.argv[1]), float(sys.argv[2])
done, samples = 0, 0


class Slow(keras.Model):
    def train_step(self, *given: Any) -> Any:
        global samples
        count = len(given[-1][0])
        samples += count
        slow = shoal.rank() == 1 and done >= 10
        until = time.process_time() + count * (SECONDS if slow else 0.0015)
        while time.process_time() < until:
            pass
        return super().train_step(*given)


class Counts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        global done, samples
        done += 1
        if done == 10:
            samples = 0


keras.utils.set_random_seed(5)
x, y = models.images()
dense = models.dense()
model = models.compile_for_classes(Slow(dense.inputs, dense.outputs), "sgd")
x, y = np.resize(x, (16 * STEPS, *x.shape[1:])), np.resize(y, 16 * STEPS)
model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[Counts()])
recorder = session.current().recorder
print("pieces", recorder.pieces, "plan", recorder.plan, flush=True)
print("worker", shoal.rank(), "samples", samples, "weights", models.weights_hash(model), flush=True)
