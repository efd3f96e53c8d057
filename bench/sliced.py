"""The sliced update against everybody's own: the time of an update on one worker and on two, one core each.

A network of 10.5 M parameters with Adam. An update's time is what the worker itself takes for it, without its waits:
the middle of the steps after the first ten, of the slowest worker. Runs of all kinds take turns.

Goal: on two workers at most 0.55 of one worker's time.

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

from harness import Facts, Watch, report, say, spread

STEPS, FIRST = 30, 10
KINDS = {"own, 1 worker": (1, False), "own, 2 workers": (2, False), "sliced, 2 workers": (2, True)}
BASE, SLICED = "own, 1 worker", "sliced, 2 workers"
GOAL = 0.55


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
    watch = Watch()
    found: dict[str, Facts] = {}
    table = [["backend", *KINDS, "sliced over one worker's own", "goal"]]
    for backend in given.backends:
        times: dict[str, list[float]] = {name: [] for name in KINDS}
        for turn in range(given.rounds):
            for name in list(KINDS)[:: -1 if turn % 2 else 1]:
                times[name].append(measured(backend, *KINDS[name]))
                say(f"{backend}, {name}: {times[name][-1]:.1f} ms")
        ratio = spread([mine / other for mine, other in zip(times[SLICED], times[BASE], strict=True)])
        found[backend] = {
            "ms_per_update": {name: spread(values) for name, values in times.items()},
            "sliced_over_one_worker": ratio | {"goal": GOAL, "reached": ratio["median"] <= GOAL},
        }
        middles = [f"{statistics.median(values):.1f} ms" for values in times.values()]
        table.append([backend, *middles, f"{ratio['median']:.2f}", f"at most {GOAL}"])
    settings = {"backends": given.backends, "rounds": given.rounds}
    report({"bench": "sliced", "settings": settings, "found": found, **watch.facts(given.backends)}, table)


if __name__ == "__main__":
    main()
