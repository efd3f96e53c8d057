"""A plain Keras script: alone it is the ceiling and the base line, under `shoal run` it is ours.

It knows nothing of Shoal. `--workers` only sizes the global batch. The callback pauses it between slices.
"""

from __future__ import annotations

import argparse

import keras
from gate import Gate
from models import SAMPLES_PER_WORKER, build, data


class Pause(keras.callbacks.Callback):
    """Holds training after a step until the bench says go."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._gate.step()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=("mlp", "conv"), default="mlp")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--gate")
    options.add_argument("--epochs", type=int, default=10**6)
    given = options.parse_args()
    gate = Gate(given.gate)
    x, y = data(given.model, given.workers)
    model = build(keras, given.model)
    batch = SAMPLES_PER_WORKER * given.workers
    model.fit(x, y, batch_size=batch, epochs=given.epochs, verbose=0, callbacks=[Pause(gate)])


if __name__ == "__main__":
    main()
