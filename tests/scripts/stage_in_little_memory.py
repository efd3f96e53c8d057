"""Trains under a limit on memory: `stage_in_little_memory.py OUT STAGES`. In one stage plain Keras trains it."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from pathlib import Path

import keras
import numpy as np

import shoal

out, stages = Path(sys.argv[1]), int(sys.argv[2])
WIDTH, DEPTH, SAMPLES = 2048, 8, 16
WEIGHTS = 4 * DEPTH * WIDTH * WIDTH  # bytes
# On PyTorch one process needs seven times the weights: them, gradients, two averages, and three for the update. In two
# stages a worker has half of that, half of the gradients once more, and all weights when it builds the model.
LIMIT = 5.2 * WEIGHTS


def network(width: int, depth: int) -> keras.Model:
    layers = [keras.layers.Dense(width, "relu") for _ in range(depth)]
    model = keras.Sequential([keras.layers.Input((width,)), *layers])
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


def limit(more: float) -> None:
    now = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + int(more), resource.RLIM_INFINITY))


out.mkdir(exist_ok=True)
rng = np.random.default_rng(1)
pipeline = shoal.Pipeline(stages=2, pieces=2, lean=True).scope() if stages > 1 else contextlib.nullcontext()
with pipeline:
    # What a backend takes for itself when it first trains is not counted.
    small = network(8, 3)
    small.fit(np.zeros((4, 8)), np.zeros((4, 8)), batch_size=4, verbose=0)
    limit(LIMIT)
    model = network(WIDTH, DEPTH)
x = rng.normal(size=(SAMPLES, WIDTH)).astype("float32")
history = model.fit(x, x, batch_size=8, epochs=2, verbose=0)
(out / f"{shoal.rank()}.json").write_text(json.dumps(history.history["loss"]))
