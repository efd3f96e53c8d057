"""The sliced update against everybody's own: the time of an update on one worker and on two, one core each.

A network of 10.5 M parameters with Adam. An update's time is what the worker itself takes for it, without its waits:
the middle of the steps after the first ten, of the slowest worker. Runs of all kinds take turns.

    python bench/sliced.py [--backends jax torch tensorflow] [--rounds 2] > sliced.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, FIRST = 30, 10


def train(out: Path, sliced: bool) -> None:
    """On a worker."""
    import keras
    import numpy as np

    import shoal
    from shoal.training.synchronous import SynchronousTraining

    seconds: list[float] = []
    note = SynchronousTraining._note

    def noted(self: Any, *given: Any, **more: Any) -> Any:
        told = note(self, *given, **more)
        seconds.append(told.update)
        return told

    SynchronousTraining._note = noted  # type: ignore[method-assign]
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(64 * STEPS, 1024)).astype("float32"), rng.integers(0, 10, 64 * STEPS)
    with shoal.AllReduce(sliced=sliced).scope():
        layers = [keras.layers.Dense(2048, "relu") for _ in range(3)]
        model = keras.Sequential([keras.layers.Input((1024,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss)
    model.fit(x, y, batch_size=64, epochs=1, verbose=0)
    (out / f"{os.getpid()}.json").write_text(json.dumps(seconds[FIRST:]))


def measured(backend: str, workers: int, sliced: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal", "run", "-n", str(workers), "--pieces", "2", "--threads", "1"]
        command += ["--backend", backend, "--no-live", __file__, "--train", folder, *(["--sliced"] if sliced else [])]
        subprocess.run(command, check=True, stdout=sys.stderr)
        told = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return 1e3 * statistics.median(max(of_step) for of_step in zip(*told, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="+", default=["jax", "torch", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--sliced", action="store_true")
    given = parser.parse_args()
    if given.train:
        train(given.train, given.sliced)
        return
    facts: dict[str, Any] = {}
    for backend in given.backends:
        kinds = {"own, 1 worker": (1, False), "own, 2 workers": (2, False), "sliced, 2 workers": (2, True)}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(given.rounds):
            for name in list(kinds)[:: -1 if turn % 2 else 1]:
                times[name].append(measured(backend, *kinds[name]))
                print(backend, name, f"{times[name][-1]:.1f} ms", file=sys.stderr, flush=True)
        facts[backend] = {name: round(statistics.median(values), 1) for name, values in times.items()}
        facts[backend]["sliced, 2 workers over own, 1 worker"] = round(
            facts[backend]["sliced, 2 workers"] / facts[backend]["own, 1 worker"], 2
        )
    print(json.dumps(facts, indent=2))


main()
