"""Trains while one worker, from some step on, takes longer for every sample; the chief prints who had how many samples.

unequal.py SECONDS_PER_SAMPLE
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

samples: list[int] = []


class Slow(keras.Model):
    def train_step(self, *given: Any) -> Any:
        count = len(given[-1][0])
        samples.append(count)
        time.sleep(0.0005 * count + (float(sys.argv[1]) * count if shoal.rank() == 1 else 0.0))
        return super().train_step(*given)


keras.utils.set_random_seed(5)
x, y = models.images()
dense = models.dense()
model = models.compile_for_classes(Slow(dense.inputs, dense.outputs), "sgd")
model.fit(np.tile(x, (32, 1, 1, 1)), np.tile(y, 32), batch_size=32, epochs=1, verbose=0)
print("pieces", session.current().recorder.pieces, flush=True)
print("worker", shoal.rank(), "samples", sum(samples), "weights", models.weights_hash(model), flush=True)
