"""Bytes that training takes to come to the same loss: all-reduce as it is, with each codec, and local SGD.

Four workers, one on each of four hosts, whose pieces (or replicas) are all computed in this process by the product's
own code: the same bits, without the waiting. What each worker would send is counted, not measured: gradients as the
codec has them, 2 (n - 1) / n times where partial sums are exchanged, n - 1 times where everyone gets everyone's (TopK,
LowRank). Left out are the frames' heads and notes of an exchange, and the copies of its optimizer's state that local
SGD sends to another host unless it is told `copies=False`. bench/links.py measures bytes between two hosts.

A method has come to the same loss when its loss on unseen data is at most 1 % above the best that fp32 all-reduce with
the same seed has had. The loss is looked at every 25 steps, or after each exchange where that is rarer. That margin was
stated before the first run. That a method may take up to three times as many steps to get there, with the same
optimizer and learning rate, which suit fp32, was added after a first look: with equal steps, local 25 and topk 1 % were
far above. Four seeds, of the data and of the first weights. Goals: a method at 1,000 times fewer bytes on at least one
task, at 100 times fewer on all.

A full table takes a while. With `--kept FILE` each training is kept as soon as it is over, and not repeated by the next
call; `--minutes` says when no more begin, and the table is of what there is.

    python bench/bytes.py [--tasks digits clicks characters] [--minutes 28] [--kept bytes.jsonl] > bytes.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from contestants import end_with_bench
from harness import Facts, Watch, report, say, significant

WORKERS, BATCH = 4, 64
STEPS = 25  # after which the loss is looked at
MARGIN = 0.01
LONGER = 3  # times as many steps as fp32: so long a method may take
GOALS = {"one task": 1000, "all tasks": 100}  # times fewer bytes
BASE = "fp32"
PROCESSES = 2
PACKAGES = ("keras", "torch", "numpy")


class Method(NamedTuple):
    codec: str | None
    every: int = 1  # steps between two exchanges
    rate: float = 0.7  # of the outer optimizer, which is SGD with Nesterov's momentum
    momentum: float = 0.9


MEAN = (1.0, 0.0)  # an outer optimizer that takes the mean of the replicas as it is
METHODS = {
    BASE: Method(None),
    "bf16": Method("bf16"),
    "int8": Method("int8"),
    "topk 1 %": Method("topk:0.01"),
    "topk 1 % int8": Method("topk:0.01:int8"),
    "lowrank 4": Method("lowrank:4"),
    "local 25": Method(None, 25),
    "local 25, mean, int8": Method("int8", 25, *MEAN),
    "local 25, mean, topk 1 % int8": Method("topk:0.01:int8", 25, *MEAN),
    "local 50, mean, topk 1 % int8": Method("topk:0.01:int8", 50, *MEAN),
    "local 100, mean, int8": Method("int8", 100, *MEAN),
    "local 100, mean, topk 1 % int8": Method("topk:0.01:int8", 100, *MEAN),
}


class Data(NamedTuple):
    x: Any
    y: Any
    unseen: tuple[Any, Any]


# Tasks: a model, its loss, and so many samples, of which fewer are the first of more -------------------------


UNSEEN, UNSEEN_WINDOWS = 2000, 512


def digits(seed: int, samples: int) -> tuple[Any, Any, Data]:
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    random = np.random.default_rng(seed)
    order = random.permutation(len(found.target))
    x, y = (found.data / 16.0).astype("float32")[order], found.target[order]
    drawn = random.integers(0, 1400, samples)
    inputs = keras.layers.Input((64,))
    hidden = keras.layers.Dense(256, "relu")(keras.layers.Dense(256, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, Data(x[drawn], y[drawn], (x[1400:], y[1400:]))


def clicks(seed: int, samples: int) -> tuple[Any, Any, Data]:
    """Eight features with 500 values each; whether somebody clicks depends on pairs of them, and on chance."""
    import keras
    import numpy as np

    random = np.random.default_rng(seed)
    hidden = random.normal(size=(4000, 4)) * 0.7
    values = random.zipf(1.3, (UNSEEN + samples, 8)) % 500 + 500 * np.arange(8)
    shown = hidden[values]
    scores = (shown[:, :4] * shown[:, 4:]).sum(axis=(1, 2)) + shown[:, :, 0].sum(axis=1) - 1.0
    y = (np.random.default_rng([seed, 1]).random(len(scores)) < 1 / (1 + np.exp(-scores))).astype("float32")
    inputs = keras.layers.Input((8,), dtype="int32")
    flat = keras.layers.Flatten()(keras.layers.Embedding(4000, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, "relu")(flat)))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    x = values.astype("int32")
    return model, loss, Data(x[UNSEEN:], y[UNSEEN:, None], (x[:UNSEEN], y[:UNSEEN, None]))


def characters(seed: int, samples: int) -> tuple[Any, Any, Data]:
    """A transformer of one block reads words of a made-up language, and says each next letter."""
    import keras
    import numpy as np

    length, width, letters = 16, 96, 27
    random = np.random.default_rng(seed)
    words = [random.integers(1, letters, random.integers(2, 8)).tolist() for _ in range(150)]
    chances = 1 / np.arange(1, 151)
    drawn = random.choice(150, 40_000, p=chances / chances.sum())
    text = np.array([letter for word in drawn for letter in (*words[word], 0)], "int32")
    starts = random.integers(0, len(text) - length - 1, UNSEEN_WINDOWS + samples)
    x, y = (np.stack([text[start + by : start + by + length] for start in starts]) for by in (0, 1))
    tokens = keras.layers.Input((length,), dtype="int32")
    hidden = keras.layers.Embedding(letters, width)(tokens)
    # Where a letter stands is told by sines, which are no weights.
    waves = 10 ** (np.arange(width) / width * 2)
    places = np.sin(np.arange(length)[:, None] / waves + np.pi / 4 * (np.arange(width) % 2))
    hidden = keras.layers.Rescaling(1.0, offset=places.astype("float32"))(hidden)
    attended = keras.layers.MultiHeadAttention(2, width // 2)(hidden, hidden, use_causal_mask=True)
    hidden = keras.layers.LayerNormalization()(keras.layers.Add()([hidden, attended]))
    deep = keras.layers.Dense(width)(keras.layers.Dense(2 * width, "relu")(hidden))
    hidden = keras.layers.LayerNormalization()(keras.layers.Add()([hidden, deep]))
    model = keras.Model(tokens, keras.layers.Dense(letters)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, Data(x[UNSEEN_WINDOWS:], y[UNSEEN_WINDOWS:], (x[:UNSEEN_WINDOWS], y[:UNSEEN_WINDOWS]))


TASKS: dict[str, Callable[[int, int], tuple[Any, Any, Data]]] = {
    "digits": digits,
    "clicks": clicks,
    "characters": characters,
}
EPOCHS = {"digits": 24, "clicks": 24, "characters": 16}  # of 25 steps, of fp32
RATE = 0.003


# One training ---------------------------------------------------------------------------------------------


class Run(NamedTuple):
    task: str
    method: str
    seed: int
    epochs: int  # of fp32
    losses: list[float]  # on unseen data, each time that it was looked at
    steps: int  # between two looks
    sent: float  # bytes that a worker sends in a step
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.task, self.method, self.seed, self.epochs


def train(task: str, name: str, seed: int, epochs: int, longer: int, goal: float) -> Run:
    """Until its loss has come to the goal, or all steps are over."""
    import keras

    import shoal
    from shoal.codecs.choice import codec_of

    class Enough(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = logs["val_loss"] <= goal

    begun = time.monotonic()
    method = METHODS[name]
    steps = max(STEPS, method.every)  # an epoch's end is an exchange
    strategy: Any = shoal.AllReduce(pieces=WORKERS, compress=method.codec)
    if method.every > 1:
        outer = keras.optimizers.SGD(method.rate, momentum=method.momentum, nesterov=method.momentum > 0)
        strategy = shoal.LocalSGD(
            every=method.every, replicas=WORKERS, outer=outer, compress=method.codec, copies=False
        )
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model, loss, data = TASKS[task](seed, BATCH * STEPS * epochs * longer)
        model.compile(keras.optimizers.Adam(RATE), loss)
    history = model.fit(
        data.x,
        data.y,
        batch_size=BATCH,
        epochs=STEPS * epochs * longer // steps,
        steps_per_epoch=steps,
        shuffle=False,
        validation_data=data.unseen,
        validation_batch_size=512,
        callbacks=[Enough()],
        verbose=0,
    )
    sent = sent_by(codec_of(method.codec, "bench"), model.trainable_variables) / method.every
    losses = [significant(loss, 6) for loss in history.history["val_loss"]]
    return Run(task, name, seed, epochs, losses, steps, sent, significant(time.monotonic() - begun))


def sent_by(codec: Any, variables: Sequence[Any]) -> float:
    """Bytes that a worker sends in an exchange."""
    import numpy as np

    from shoal.codecs.shapes import ArrayShape

    shapes = tuple(ArrayShape("float32", int(np.prod(v.shape)), tuple(v.shape)) for v in variables)
    nbytes = sum(shape.nbytes for shape in codec.shapes(shapes))
    return nbytes * ((WORKERS - 1) if codec.by_slot is not None else 2 * (WORKERS - 1) / WORKERS)


# All of them ----------------------------------------------------------------------------------------------


def reached(run: Run, goal: float) -> float | None:
    """Bytes until it has come to the goal; None if it has not."""
    looks = next((number for number, loss in enumerate(run.losses, 1) if loss <= goal), None)
    return None if looks is None else looks * run.steps * run.sent


def goal_of(base: Run) -> float:
    return min(base.losses) * (1 + MARGIN)


def judged(runs: Sequence[Run]) -> list[Facts]:
    """A row for each method, of one task."""
    base = {run.seed: run for run in runs if run.method == BASE}
    rows = []
    for method in METHODS:
        mine = [run for run in runs if run.method == method and run.seed in base]
        if not mine:
            continue
        fewer = []
        for run in mine:
            found, full = reached(run, goal_of(base[run.seed])), reached(base[run.seed], goal_of(base[run.seed]))
            fewer.append(None if found is None or full is None else significant(full / found))
        there = [one for one in fewer if one is not None]
        rows.append(
            {
                "task": mine[0].task,
                "method": method,
                "bytes_per_worker_and_step": significant(mine[0].sent),
                "times_fewer_per_step": significant(base[mine[0].seed].sent / mine[0].sent),
                "best_loss_over_fp32": significant(
                    mean(min(run.losses) / min(base[run.seed].losses) for run in mine), 5
                ),
                "seeds": len(mine),
                "seeds_that_came_to_it": len(there),
                "times_fewer_to_the_loss": fewer,
                # What did not come to it counts as 0 times fewer: the middle is there only if most seeds are.
                "median_times_fewer": significant(median(one or 0.0 for one in fewer)) or None,
                "steps_to_the_loss": [
                    run.steps * (1 + next(i for i, loss in enumerate(run.losses) if loss <= goal_of(base[run.seed])))
                    for run, one in zip(mine, fewer, strict=True)
                    if one is not None
                ],
            }
        )
    return rows


def read(kept: Path) -> dict[tuple[str, str, int, int], Run]:
    lines = kept.read_text().splitlines() if kept.exists() else []
    runs = [Run(*json.loads(line)) for line in lines]
    return {run.key: run for run in runs}


def work(groups: Sequence[tuple[int, str]], given: argparse.Namespace) -> None:
    """All trainings of these seeds and tasks that are not kept yet. fp32 says what the others have to come to."""

    def run(task: str, name: str, seed: int, longer: int, goal: float) -> Run | None:
        epochs = given.epochs or EPOCHS[task]
        known = read(given.kept).get((task, name, seed, epochs))
        if known is not None or time.monotonic() > given.until:
            return known
        found = train(task, name, seed, epochs, longer, goal)
        with given.kept.open("a") as file:
            file.write(json.dumps(found) + "\n")
        say(f"{task}, seed {seed}, {name}: {min(found.losses):.4f}, at most {goal:.4f}, {found.seconds:.0f} s")
        return found

    for seed, task in groups:
        base = run(task, BASE, seed, 1, 0.0)
        for name in given.methods:
            if base is not None and name != BASE:
                run(task, name, seed, LONGER, goal_of(base))


def table(rows: Sequence[Facts]) -> list[list[str]]:
    lines = [["task", "method", "kB per step", "times fewer", "best loss", "came to it", "bytes to it: times fewer"]]
    for row in rows:
        fewer = row["median_times_fewer"]
        lines.append(
            [
                row["task"],
                row["method"],
                f"{row['bytes_per_worker_and_step'] / 1e3:,.3f}",
                f"{row['times_fewer_per_step']:,.0f}",
                f"{row['best_loss_over_fp32'] - 1:+.1%}",
                f"{row['seeds_that_came_to_it']} of {row['seeds']}",
                f"{fewer:,.0f}" if fewer else "not reached",
            ]
        )
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    options.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options.add_argument("--epochs", type=int, help="of 25 steps, of fp32; the others may take three times as many")
    options.add_argument("--minutes", type=float, default=28.0, help="after which no training begins")
    options.add_argument("--kept", type=Path, help="a file with the trainings of earlier calls, which gets this one's")
    options.add_argument("--processes", type=int, default=PROCESSES)
    options.add_argument("--quick", action="store_true", help="digits, one seed, four methods: shows that it works")
    options.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.quick:
        given.tasks, given.seeds, given.epochs = ["digits"], 1, 4
        given.methods = [BASE, "int8", "topk 1 %", "local 25, int8"]
    groups = [(seed, task) for seed in range(given.seeds) for task in given.tasks]
    if given.part is not None:
        work(groups[given.part :: given.processes], given)
        return
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="bench-bytes-") as folder:
        kept = given.kept or Path(folder) / "kept"
        environ = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        until = time.monotonic() + 60 * given.minutes
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--kept", str(kept), "--until", str(until)]
        processes = [
            subprocess.Popen([*command, "--part", str(part)], env=environ, preexec_fn=end_with_bench)
            for part in range(given.processes)
        ]
        failed = [process.wait() for process in processes]
        if any(failed):
            raise SystemExit("a training failed: see above")
        epochs = {task: given.epochs or EPOCHS[task] for task in given.tasks}
        runs = [run for run in read(kept).values() if epochs.get(run.task) == run.epochs and run.seed < given.seeds]
    rows = [row for task in given.tasks for row in judged([run for run in runs if run.task == task])]
    best = {
        task: max((row["median_times_fewer"] or 0.0 for row in rows if row["task"] == task), default=0.0)
        for task in given.tasks
    }
    facts = {
        "bench": "bytes",
        "settings": {**vars(given), "kept": str(given.kept or ""), "epochs_of_fp32": epochs, "margin": MARGIN},
        "found": rows,
        "most_times_fewer": best,
        "goals": {
            "one task": {"goal": GOALS["one task"], "reached": max(best.values()) >= GOALS["one task"]},
            "all tasks": {"goal": GOALS["all tasks"], "reached": min(best.values()) >= GOALS["all tasks"]},
        },
        "trainings": len(runs),
    }
    report({**facts, **watch.facts(PACKAGES)}, table(rows))


if __name__ == "__main__":
    main()
