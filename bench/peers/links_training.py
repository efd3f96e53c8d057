"""Trains a network with each codec in turn, and writes how long steps take and what leaves this host by the cable.

links_training.py OUT ENOUGH NETWORK CODEC...    the first fit lasts until the file ENOUGH is there

A codec may be "local:50" or "local:50:int8" too: local SGD with so many steps between two exchanges.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from models import CLASSES, HIDDEN, SHAPES

import shoal

SENT = Path("/sys/class/net/cable/statistics/tx_bytes")
STEPS, BATCH = {"large": 7, "conv": 25}, 16
ROUNDS = 4  # of local SGD
NETWORKS = {
    "large": [
        layers.InputLayer(SHAPES["large"]), *(layers.Dense(n, "relu") for n in HIDDEN["large"]), layers.Dense(CLASSES),
    ],
    "conv": [
        layers.InputLayer((28, 28, 1)), *(layers.Conv2D(n, 3, activation="relu") for n in (32, 32, 64, 64)),
        layers.GlobalAveragePooling2D(), layers.Dense(10),
    ],
}  # fmt: skip


class Marks(keras.callbacks.Callback):
    """When each step ended, and what had left by then."""

    def __init__(self, enough: Path | None = None) -> None:
        super().__init__()
        self.marks: list[tuple[float, int]] = []
        self._enough = enough

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.marks.append((time.perf_counter(), int(SENT.read_text()) if SENT.exists() else 0))
        if self._enough is not None:
            time.sleep(0.05)
            self.model.stop_training = self._enough.exists()


def train(strategy: Any, steps: int, epochs: int, marks: Marks) -> None:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([type(layer).from_config(layer.get_config()) for layer in NETWORKS[network]])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    samples = BATCH * steps
    x = random.normal(size=(samples, *model.input_shape[1:])).astype("float32")
    model.fit(x, random.integers(0, 10, samples), batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[marks])


out, enough, network, *codecs = sys.argv[1:]
train(shoal.AllReduce(), STEPS[network], 100_000, Marks(Path(enough)))
told: dict[str, Any] = {}
for codec in codecs:
    marks, every = Marks(), 1
    kind, _, rest = codec.partition(":")
    if kind == "local":  # an epoch is a round, after which there is one mark
        number, _, inside = rest.partition(":")
        every = int(number)
        train(shoal.LocalSGD(every=every, compress=inside or None), every, ROUNDS, marks)
    else:
        train(shoal.AllReduce(compress=None if codec == "none" else codec), STEPS[network], 1, marks)
    each = [((after[0] - before[0]) / every, (after[1] - before[1]) / every) for before, after in pairwise(marks.marks)]
    told.setdefault(codec, []).extend(each[1:])  # the first one opens memory
if shoal.is_chief():
    Path(out).write_text(json.dumps(told))
