"""What `shoal plan` predicts against what steps take: a handful of models, each with several plans, on two workers.

For each model the plan is made twice, before and after its runs, and predictions are compared with the middle of the
steps' times after the first ones. Beside the errors: how long the choice itself takes, with four unequal workers.

    python bench/plan.py [--backend torch] [--models mlp wide cnn transformer] [--plans 4] > plan.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Watch, report, significant

STEPS, FIRST = 40, 12
MODELS = ("mlp", "wide", "cnn", "transformer")


def model_of(name: str) -> tuple[Any, Any, Any, int]:
    """A compiled model, its data and its batch size."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(1)
    batch = {"mlp": 256, "wide": 64, "cnn": 64, "transformer": 32}[name]
    count = batch * STEPS
    if name == "mlp":
        x = rng.normal(size=(count, 512)).astype("float32")
        body: list[Any] = [layers.Input((512,)), *(layers.Dense(512, "relu") for _ in range(6))]
    elif name == "wide":
        x = rng.normal(size=(count, 1024)).astype("float32")
        body = [layers.Input((1024,)), *(layers.Dense(2048, "relu") for _ in range(3))]
    elif name == "cnn":
        x = rng.normal(size=(count, 24, 24, 3)).astype("float32")
        body = [layers.Input((24, 24, 3))]
        for filters in (32, 48, 64):
            body += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.BatchNormalization()]
        body += [layers.GlobalAveragePooling2D(), layers.Dense(256, "relu")]
    else:
        x = rng.integers(0, 1000, size=(count, 48))
    if name == "transformer":
        tokens = layers.Input((48,))
        hidden = layers.Embedding(1000, 128)(tokens)
        for _ in range(4):
            hidden = hidden + layers.MultiHeadAttention(4, 32)(hidden, hidden)
            hidden = layers.LayerNormalization()(hidden)
            hidden = layers.LayerNormalization()(hidden + layers.Dense(128)(layers.Dense(512, "relu")(hidden)))
        model = keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(hidden)))
    else:
        model = keras.Sequential([*body, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return model, x, rng.integers(0, 10, count), batch


def train(name: str, out: Path) -> None:
    """On a worker, and in the process that plans."""
    from shoal.session import Session

    model, x, y, batch = model_of(name)
    at: list[float] = []
    count = Session.count

    def counted(self: Any, *given: Any) -> None:  # no callback, which would have to be shown all weights
        at.append(time.perf_counter())
        count(self, *given)

    Session.count = counted  # type: ignore[method-assign]
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0)
    times = [after - before for before, after in zip(at[FIRST:], at[FIRST + 1 :], strict=False)]
    (out / f"{os.getpid()}.json").write_text(json.dumps(statistics.median(times)))


def shoal(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal", *map(str, words)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)


def planned(backend: str, name: str) -> dict[str, dict[str, Any]]:
    """By name, what is predicted of each plan."""
    words = (
        "plan",
        "-n",
        2,
        "--threads",
        1,
        "--backend",
        backend,
        "--json",
        __file__,
        "--train",
        name,
        "--out",
        "/dev/null",
    )
    return {one["plan"]: one for one in json.loads(shoal(*words).stdout)["plans"]}


def trained(backend: str, name: str, flags: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "-n", "2", "--threads", "1", "--backend", backend, "--no-live", *flags.split()]
        shoal(*words, __file__, "--train", name, "--out", folder)
        return max(json.loads(path.read_text()) for path in Path(folder).glob("*.json"))


def compared(backend: str, name: str, count: int) -> dict[str, Any]:
    """The best plan of each kind, and others, as many as there is time for."""
    before = planned(backend, name)
    chosen: dict[str, dict[str, Any]] = {}
    for kind in ("data parallel", "sliced update", "pipeline"):
        of_kind = [one for one in before.values() if one["kind"] == kind]
        if of_kind:
            chosen[of_kind[0]["plan"]] = of_kind[0]
    for one in before.values():
        if len(chosen) < count:
            chosen.setdefault(one["plan"], one)
    real = {plan: trained(backend, name, one["flags"]) for plan, one in chosen.items()}
    after = planned(backend, name)
    rows: dict[str, Any] = {}
    for plan, took in real.items():
        expected = statistics.mean([before[plan]["step_seconds"], after.get(plan, before[plan])["step_seconds"]])
        rows[plan] = {
            "predicted_ms": significant(1e3 * expected),
            "real_ms": significant(1e3 * took),
            "error": significant(expected / took - 1.0, 3),
        }
        print(name, plan, rows[plan], file=sys.stderr, flush=True)
    first = next(iter(before))
    return {"plans": rows, "first": first, "first_over_best": significant(real[first] / min(real.values()), 3)}


def choosing() -> float:
    """Seconds from facts to a ranking, for four unequal workers."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.planning.made_up import Layer, facts_of

    from shoal.planning.ranking import rank

    facts = facts_of([Layer()] * 16, (1.0, 1.0, 0.5, 0.25), batch=256)
    began = time.perf_counter()
    rank(facts)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--plans", type=int, default=4)
    parser.add_argument("--train")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.out)
        return
    watch = Watch()
    found = {name: compared(given.backend, name, given.plans) for name in given.models}
    errors = [abs(row["error"]) for one in found.values() for row in one["plans"].values()]
    facts = {
        "bench": "plan",
        "backend": given.backend,
        "models": found,
        "median_error": significant(statistics.median(errors), 3),
        "worst_error": significant(max(errors), 3),
        "choosing_seconds": significant(choosing(), 3),
    }
    table = [["model", "plan", "predicted", "real", "error"]]
    for name, one in found.items():
        for plan, row in one["plans"].items():
            times = [f"{row[which]} ms" for which in ("predicted_ms", "real_ms")]
            table.append([name, plan, *times, f"{100 * row['error']:+.1f} %"])
    table.append(["all", "median of the errors", "", "", f"{100 * facts['median_error']:.1f} %"])
    report({**facts, **watch.facts([given.backend])}, table)


if __name__ == "__main__":
    main()
