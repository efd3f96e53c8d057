"""Trains with LocalSGD(uneven=True) while one worker is slow, and tells what each replica's worker has computed.

local_uneven.py OUT SECONDS_PER_SAMPLE EPOCHS [kill] [fixed]

kill: the slow one kills itself in the middle of a late round. fixed: counts are as if workers had certain speeds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import local_sgd
import models
import numpy as np

import shoal
from shoal.training import local

out, SECONDS, EPOCHS = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
KILLS, FIXED = "kill" in sys.argv, "fixed" in sys.argv
ROUNDS, EVERY = 12, 4
rounds, steps = 0, 0
last: list[int] = []


class Slow(keras.Model):
    def train_step(self, *given: Any) -> Any:
        global steps
        steps += 1
        count = len(given[-1][0])
        until = time.process_time() + count * (SECONDS if shoal.rank() == 1 else 0.001)
        while time.process_time() < until:
            pass
        if KILLS and rounds == ROUNDS - 3 and shoal.size() == 2 and shoal.rank() == 1:
            (out / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(*given)


class Counts(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        global steps
        steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        global rounds
        rounds += 1
        last.append(steps)


if FIXED:
    turns = iter([(5, 3), (7, 1), (1, 7)] * 99)
    local.counts_for = lambda balance, members, replicas, steps: next(turns)
out.mkdir(exist_ok=True)
keras.utils.set_random_seed(5)
with shoal.LocalSGD(every=EVERY, replicas=2, uneven=True).scope():
    dense = models.dense()
    model = Slow(dense.inputs, dense.outputs)
    models.compile_for_classes(model, keras.optimizers.Adam(0.01), metrics=["accuracy"])
x, y = models.images()
x, y = np.resize(x, (8 * EVERY * ROUNDS, *x.shape[1:])), np.resize(y, 8 * EVERY * ROUNDS)
model.fit(x, y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[Counts()])
told = {"weights": local_sgd.hashed(model.variables), "steps": last}
(out / f"{shoal.rank()}.json").write_text(json.dumps(told))
