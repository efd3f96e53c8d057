"""Digits with TopK or LocalSGD; writes the loss on unseen digits: `lost_residuals.py OUT allreduce|local [STEP]`.

The second worker kills itself at this step. With `--transport tcp` it takes along what it alone had.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from sklearn.datasets import load_digits

import shoal

out, kind, *killed = sys.argv[1:]
STRATEGIES: dict[str, Any] = {
    "allreduce": shoal.AllReduce(pieces=3, compress=shoal.TopK(0.05)),
    "local": shoal.LocalSGD(every=11, replicas=3, compress=shoal.TopK(0.05), copies=False),
}
SEEN = 1408  # 22 batches of 64


class Killed(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if killed and shoal.rank() == 1 and shoal.size() == 3 and not Path(out, "killed").exists():
            Killed.steps += 1
            if Killed.steps == int(killed[0]):
                Path(out, "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)


Path(out).mkdir(exist_ok=True)
digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x, y = (digits.data / 16.0).astype("float32")[order], digits.target[order]
keras.utils.set_random_seed(3)
inputs = keras.layers.Input((64,))
with STRATEGIES[kind].scope():
    model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Dense(64, "relu")(inputs)))
    models.compile_for_classes(model, keras.optimizers.Adam(0.003))
model.fit(x[:SEEN], y[:SEEN], batch_size=64, epochs=16, verbose=0, callbacks=[Killed()])
loss = float(model.evaluate(x[SEEN:], y[SEEN:], verbose=0))
if shoal.is_chief():
    Path(out, "loss.json").write_text(json.dumps(loss))
