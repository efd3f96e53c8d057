"""Trains with one codec at a time, as it is told, and says how long steps take and what leaves this host by the cable.

links_training.py FOLDER NETWORK BATCH

The bench writes its wishes to FOLDER/turn-1, turn-2, and so on, and finds the answers in FOLDER/shoal-1, shoal-2. See
`turns.py`. A method may be a codec, "local:50", "local:50:int8", or "local:50:int8:streaming:5": local SGD with so many
steps between two exchanges, whose moves have a codec, and which cuts the weights into so many fragments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from models import CLASSES, HIDDEN, SHAPES
from turns import Marks, Turn, turns

import shoal

LOCAL_ROUNDS = {"large": 3, "conv": 2}
LAST = 1  # marks at the end of local SGD's epoch that do not count: with the epoch, all fragments are exchanged at once
NETWORKS = {
    "large": [
        layers.InputLayer(SHAPES["large"]), *(layers.Dense(n, "relu") for n in HIDDEN["large"]), layers.Dense(CLASSES),
    ],
    "conv": [
        layers.InputLayer((28, 28, 1)), *(layers.Conv2D(n, 3, activation="relu") for n in (32, 32, 64, 64)),
        layers.GlobalAveragePooling2D(), layers.Dense(10),
    ],
}  # fmt: skip


class Marking(keras.callbacks.Callback):
    """A mark after each step, or after each round of local SGD."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._marks.add()


def strategy_of(method: str, workers: int) -> tuple[Any, int, int]:
    """With it: steps between two marks, and those between two exchanges of all weights."""
    kind, *rest = method.split(":")
    if kind != "local":
        return shoal.AllReduce(pieces=workers, compress=None if kind == "none" else method), 1, 1
    every, streaming = int(rest[0]), None
    if "streaming" in rest:
        at = rest.index("streaming")
        streaming, rest = int(rest[at + 1]), rest[:at]
    compress = ":".join(rest[1:]) or None
    strategy = shoal.LocalSGD(every=every, replicas=workers, compress=compress, streaming=streaming)
    return strategy, every // (streaming or 1), every


def trained(turn: Turn, network: str, batch: int) -> Marks:
    strategy, between, every = strategy_of(turn.method.removesuffix(" again"), turn.workers)
    marks = Marks(between, turn.skipped)
    steps = turn.skipped + turn.steps + 1
    if every > 1:
        steps, marks.skipped, marks.last = (
            LOCAL_ROUNDS[network] * every,
            every // between - 1,
            LAST if between < every else 0,
        )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([type(layer).from_config(layer.get_config()) for layer in NETWORKS[network]])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    random = np.random.default_rng(0)
    x = random.standard_normal((batch * steps, *model.input_shape[1:]), dtype=np.float32)
    y = random.integers(0, CLASSES, batch * steps)
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0, callbacks=[Marking(marks)], shuffle=False)
    return marks


def main(folder: Path, network: str, batch: int) -> None:
    for turn in turns(folder, "shoal"):
        marks = trained(turn, network, batch)
        if shoal.is_chief():
            turn.answer(marks)


main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
