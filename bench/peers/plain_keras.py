"""A plain Keras script: alone it is the ceiling and the base line, under `shoal run` it is ours.

It knows nothing of Shoal. `--workers` and `--samples` only size the global batch. Callbacks pause it between slices,
stamp its steps, or neither.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import keras
from gate import Gate
from models import SAMPLES_PER_WORKER, SHAPES, STEPS_PER_EPOCH, build, data
from stamps import Stamps


class Pause(keras.callbacks.Callback):
    """Holds training after a step until the bench says go."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._gate.step()


class Stamping(keras.callbacks.Callback):
    """Stamps every step."""

    def __init__(self, stamps: Stamps) -> None:
        super().__init__()
        self._stamps = stamps
        self._before = 0  # steps of the epochs before this one

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._before = epoch * STEPS_PER_EPOCH

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._stamps.step(self._before + batch)


def digest(model: Any) -> str:
    """One word for all bits of the weights."""
    found = hashlib.sha256()
    for weights in model.get_weights():
        found.update(weights.tobytes())
    return found.hexdigest()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=tuple(SHAPES), default="mlp")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--samples", type=int, default=SAMPLES_PER_WORKER, help="per worker and step")
    options.add_argument("--gate")
    options.add_argument("--stamps", metavar="FOLDER")
    options.add_argument("--epochs", type=int, default=10**6)
    options.add_argument("--digest", type=Path, metavar="FILE", help="of the weights, when all epochs are over")
    options.add_argument("--backup", metavar="FOLDER", help="for Keras's own BackupAndRestore")
    options.add_argument("--every", type=int, default=100, help="steps between two backups")
    given = options.parse_args()
    callbacks: list[Any] = [Pause(Gate(given.gate)), Stamping(Stamps(given.stamps))]
    if given.backup:
        callbacks.append(keras.callbacks.BackupAndRestore(given.backup, save_freq=given.every))
    keras.utils.set_random_seed(0)
    batch = given.samples * given.workers
    x, y = data(given.model, batch)
    model = build(keras, given.model)
    model.fit(x, y, batch_size=batch, epochs=given.epochs, verbose=0, callbacks=callbacks)
    if given.digest:
        given.digest.write_text(digest(model))


if __name__ == "__main__":
    main()
