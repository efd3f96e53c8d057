"""A pipeline's step against the ideal replay of its own schedule: two stages on two workers, one core each.

Every worker times its forward and backward passes, its sums and its update, without its waits. For each step after the
first ten, the schedule is replayed as discrete events with exactly these times, and tensors that take no time to
travel. To that comes the slowest worker's update. What a step really took, over that, is the ratio: what waiting,
passing tensors, exchanging and everything around it cost. Once with copies of stages, as by default, and once without.
Goal: at most 1.10.

    python bench/pipeline.py [--backends jax torch tensorflow] [--rounds 2] > pipeline.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Watch, report, spread

STEPS, FIRST, PIECES, STAGES = 40, 10, 8, 2
BATCH, WIDTH = 256, 1024
GOAL = 1.10


def train(out: Path, lean: bool) -> None:
    """On a worker."""
    import keras
    import numpy as np

    import shoal
    from shoal.training import pipeline_step
    from shoal.training.pipeline_step import PipelineStep
    from shoal.training.pipelined import PipelinedTraining

    steps: list[dict[str, Any]] = []
    here: dict[str, Any] = {}

    def timed(owner: Any, name: str, keep: Any) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            began = time.perf_counter()
            result = real(*given, **more)
            keep(given, time.perf_counter() - began)
            return result

        setattr(owner, name, call)

    def passed(kind: str, stage: int) -> Any:
        return lambda given, seconds: here["passes"].append((kind, stage, given[0], seconds))

    make, act = PipelineStep.__init__, PipelinedTraining._act

    def made(self: Any, run: Any, engine: Any, engines: Any, *rest: Any) -> None:
        if not getattr(engines[0], "is_timed", False):
            for number, one in enumerate(engines):
                timed(one, "forward", passed("forward", number))
                timed(one, "backward", passed("backward", number))
            engines[0].is_timed = True
        make(self, run, engine, engines, *rest)

    def acted(self: Any, group: Any, *rest: Any) -> Any:
        here.update(passes=[], sums=0.0, update=0.0, began=time.perf_counter(), rank=group.rank)
        return act(self, group, *rest)

    def summed(_: Any, seconds: float) -> None:
        here["sums"] += seconds

    def updated(_: Any, seconds: float) -> None:
        steps.append(here | {"update": seconds})

    PipelineStep.__init__ = made  # type: ignore[method-assign]
    PipelinedTraining._act = acted  # type: ignore[method-assign]
    timed(pipeline_step, "_push", summed)
    timed(PipelinedTraining, "_apply", updated)
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(BATCH * STEPS, WIDTH)).astype("float32"), rng.integers(0, 10, BATCH * STEPS)
    with shoal.Pipeline(stages=STAGES, pieces=PIECES, lean=lean).scope():
        layers = [keras.layers.Dense(WIDTH, "relu") for _ in range(5)]
        model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss)
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    (out / f"{shoal.rank()}.json").write_text(json.dumps(steps))


def ratios(told: list[list[dict[str, Any]]]) -> tuple[list[float], list[float], list[float]]:
    """Of each step: really over ideal, the real seconds, and the ideal ones. `told`: by rank, by step."""
    from shoal.strategies.schedule import Action, Pass, actions_of, replay

    workers = len(told)
    held = [[range(PIECES) if rank == stage else range(0) for rank in range(workers)] for stage in range(STAGES)]
    schedule = [actions_of(held, rank) for rank in range(workers)]
    found, real, ideal = [], [], []
    for number in range(FIRST, len(told[0]) - 1):
        of_step = [worker[number] for worker in told]
        took = {
            Action(Pass(kind), stage, piece): seconds
            for worker in of_step
            for kind, stage, piece, seconds in worker["passes"]
        }
        sums = [worker["sums"] / PIECES for worker in of_step]
        played = replay(
            schedule,
            STAGES,
            lambda action, rank, took=took, sums=sums: took[action] + sums[rank] * (action.kind is Pass.BACKWARD),
        )
        best = played.seconds + max(worker["update"] for worker in of_step)
        lasted = told[0][number + 1]["began"] - told[0][number]["began"]
        found.append(lasted / best)
        real.append(1e3 * lasted)
        ideal.append(1e3 * best)
    return found, real, ideal


def measured(backend: str, lean: bool) -> tuple[list[float], list[float], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shoal", "run", "-n", str(STAGES), "--threads", "1", "--backend", backend]
        command += ["--no-live", __file__, "--train", folder, *(["--lean"] if lean else [])]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return ratios([json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(STAGES)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", nargs="+", default=["jax", "torch", "tensorflow"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--lean", action="store_true")
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.lean)
        return
    watch = Watch()
    table = [["", "over ideal", "step", "ideal"]]
    facts: dict[str, Any] = {}
    for backend in given.backends:
        for lean in (True, False):
            rounds = [measured(backend, lean) for _ in range(given.rounds)]
            found, real, ideal = ([value for one in rounds for value in one[part]] for part in range(3))
            name = f"{backend}, {'no copies' if lean else 'copies'}"
            facts[name] = {
                "over ideal": spread(found),
                "step ms": statistics.median(real),
                "ideal ms": statistics.median(ideal),
                "goal": GOAL,
                "reached": statistics.median(found) <= GOAL,
            }
            middles = (statistics.median(values) for values in (real, ideal))
            table.append([name, f"{statistics.median(found):.2f}", *(f"{middle:.1f} ms" for middle in middles)])
    shape = {"stages": STAGES, "pieces": PIECES, "batch": BATCH, "parameters": 5 * WIDTH * WIDTH}
    report({"bench": "pipeline", "shape": shape, "found": facts, **watch.facts(given.backends)}, table)


if __name__ == "__main__":
    main()
