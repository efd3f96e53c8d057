"""Trains a model whose table takes more memory than this process may: with servers that works, alone it does not.

The worker limits itself, as `ulimit -d` would, before the model is built. Prints what it may take and what it trained.
"""

from __future__ import annotations

import json
import resource
import time

import keras
import numpy as np
import psutil

import shoal
from shoal.layers import ShardedEmbedding

ROWS, WIDTH = 40_000_000, 64
ROOM = 3 << 30  # bytes of data that the worker may have in addition to what its libraries have taken by now
SAMPLES = 20_000

is_worker = shoal.rank() < shoal.size()
if is_worker:
    taken = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (taken + ROOM, taken + ROOM))
keras.utils.set_random_seed(0)
ids = np.random.default_rng(0).integers(0, ROWS, (SAMPLES, 4), dtype=np.int32)
y = (ids[:, 0] % 2).astype("float32")
model = keras.Sequential(
    [
        keras.Input((4,), dtype="int32"),
        ShardedEmbedding(ROWS, WIDTH, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adagrad(0.5), keras.losses.BinaryCrossentropy(from_logits=True))
begun = time.monotonic()
history = model.fit(ids, y, batch_size=500, epochs=3, verbose=0)
if is_worker:
    told = {
        "table_gb": ROWS * WIDTH * 4 / 1e9,
        "worker_may_take_gb": round(ROOM / 1e9, 2),
        "worker_took_gb": round((psutil.Process().memory_info().data - taken) / 1e9, 2),
        "samples_per_second": round(3 * SAMPLES / (time.monotonic() - begun)),
        "loss": [round(loss, 4) for loss in history.history["loss"]],
    }
    print(json.dumps(told), flush=True)
