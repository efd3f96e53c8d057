"""Bytes that training takes to come to the same loss: all-reduce as it is, with each codec, and local SGD.

Four workers, one on each of four hosts, whose pieces (or replicas) are all computed in this process by the product's
own code: the same bits, without the waiting. What each worker would send is counted, not measured: gradients as the
codec has them, 2 (n - 1) / n times where partial sums are exchanged, n - 1 times where everyone gets everyone's (TopK,
LowRank). bench/links.py measures such bytes between two hosts.

A method has come to the same loss when its loss on unseen data is at most 1 % above the best that fp32 all-reduce with
the same seed has had in its epochs. That margin was stated before the first run. That a method may take up to three
times as many steps to get there, with the same optimizer and learning rate, which suit fp32, was added after a first
look: with equal steps, local 25 and topk 1 % were far above. Four seeds, of the data and of the first weights. Goals: a
method at 1,000 times fewer bytes on at least one task, at 100 times fewer on all.

    python bench/bytes.py [--seeds 4] [--tasks digits clicks characters] [--methods ...] [--epochs 6]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

WORKERS, BATCH = 4, 64
STEPS = 25  # of an epoch, after which the loss is looked at
MARGIN = 0.01
LONGER = 3  # times as many steps as fp32: so long a method may take
BASE = "fp32"
METHODS = {  # codec, steps between two exchanges
    BASE: (None, 1),
    "bf16": ("bf16", 1),
    "int8": ("int8", 1),
    "topk 1 %": ("topk:0.01", 1),
    "topk 1 % int8": ("topk:0.01:int8", 1),
    "lowrank 4": ("lowrank:4", 1),
    "local 5": (None, 5),
    "local 25": (None, 25),
    "local 25, int8": ("int8", 25),
    "local 25, topk 10 % int8": ("topk:0.1:int8", 25),
    "local 25, topk 2 % int8": ("topk:0.02:int8", 25),
}
PROCESSES = 2


class Data(NamedTuple):
    x: Any
    y: Any
    unseen: tuple[Any, Any]


# Tasks: a model, its loss, and as many samples as all epochs take ------------------------------------------


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
    hidden = keras.layers.Dense(128, "relu")(keras.layers.Dense(128, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, loss, Data(x[drawn], y[drawn], (x[1400:], y[1400:]))


def clicks(seed: int, samples: int) -> tuple[Any, Any, Data]:
    """Eight features with 500 values each; whether somebody clicks depends on pairs of them, and on chance."""
    import keras
    import numpy as np

    random = np.random.default_rng(seed)
    values = random.zipf(1.3, (samples + 2000, 8)) % 500 + 500 * np.arange(8)
    hidden = random.normal(size=(4000, 4)) * 0.7
    shown = hidden[values]
    scores = (shown[:, :4] * shown[:, 4:]).sum(axis=(1, 2)) + shown[:, :, 0].sum(axis=1) - 1.0
    y = (random.random(len(scores)) < 1 / (1 + np.exp(-scores))).astype("float32")
    inputs = keras.layers.Input((8,), dtype="int32")
    flat = keras.layers.Flatten()(keras.layers.Embedding(4000, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, "relu")(flat)))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    x = values.astype("int32")
    return model, loss, Data(x[:samples], y[:samples, None], (x[samples:], y[samples:, None]))


def characters(seed: int, samples: int) -> tuple[Any, Any, Data]:
    """A transformer of one block reads words of a made-up language, and says each next letter."""
    import keras
    import numpy as np

    length, width, letters = 16, 48, 27
    random = np.random.default_rng(seed)
    words = [random.integers(1, letters, random.integers(2, 8)).tolist() for _ in range(150)]
    chances = 1 / np.arange(1, 151)
    drawn = random.choice(150, 40_000, p=chances / chances.sum())
    text = np.array([letter for word in drawn for letter in (*words[word], 0)], "int32")
    starts = random.integers(0, len(text) - length - 1, samples + 512)
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
    return model, loss, Data(x[:samples], y[:samples], (x[samples:], y[samples:]))


TASKS: dict[str, Callable[[int, int], tuple[Any, Any, Data]]] = {
    "digits": digits,
    "clicks": clicks,
    "characters": characters,
}
RATE = 0.003


# One training ---------------------------------------------------------------------------------------------


class Run(NamedTuple):
    task: str
    method: str
    seed: int
    losses: list[float]  # on unseen data, after each epoch
    sent: float  # bytes that a worker sends in an epoch


def train(task: str, method: str, seed: int, epochs: int, goal: float) -> Run:
    """Until its loss has come to the goal, or all epochs are over."""
    import keras

    import shoal
    from shoal.codecs.choice import codec_of

    class Enough(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = logs["val_loss"] <= goal

    compress, every = METHODS[method]
    strategy: Any = shoal.AllReduce(pieces=WORKERS, compress=compress)
    if every > 1:
        strategy = shoal.LocalSGD(every=every, replicas=WORKERS, compress=compress)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model, loss, data = TASKS[task](seed, BATCH * STEPS * epochs)
        model.compile(keras.optimizers.Adam(RATE), loss)
    history = model.fit(
        data.x,
        data.y,
        batch_size=BATCH,
        epochs=epochs,
        steps_per_epoch=STEPS,
        shuffle=False,
        validation_data=data.unseen,
        validation_batch_size=512,
        callbacks=[Enough()],
        verbose=0,
    )
    sent = sent_by(codec_of(compress, "bench"), model.trainable_variables) * STEPS / every
    return Run(task, method, seed, history.history["val_loss"], sent)


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
    epoch = next((number for number, loss in enumerate(run.losses, 1) if loss <= goal), None)
    return None if epoch is None else epoch * run.sent


def rows(task: str, runs: Sequence[Run]) -> list[str]:
    base = {run.seed: run for run in runs if run.method == BASE}
    goals = {seed: min(run.losses) * (1 + MARGIN) for seed, run in base.items()}
    full = median(found for seed, run in base.items() if (found := reached(run, goals[seed])) is not None)
    lines = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        found = [reached(run, goals[run.seed]) for run in mine]
        there = [one for one in found if one is not None]
        off = mean(min(run.losses) / min(base[run.seed].losses) for run in mine) - 1
        fewer = f"{full / median(there):,.0f}" if len(there) * 2 > len(found) else "not reached"
        each = base[mine[0].seed].sent / mine[0].sent
        lines.append(
            f"| {task} | {method} | {mine[0].sent / STEPS / 1e3:,.2f} | {each:,.0f} | {off:+.1%} "
            f"| {len(there)} of {len(found)} | {fewer} |"
        )
    return lines


def work(groups: Sequence[tuple[str, int]], methods: Sequence[str], epochs: int) -> None:
    """The first method is the one that says what the others have to come to."""
    for task, seed in groups:
        base = train(task, methods[0], seed, epochs, 0.0)
        print(json.dumps(base), flush=True)
        for method in methods[1:]:
            run = train(task, method, seed, LONGER * epochs, min(base.losses) * (1 + MARGIN))
            print(json.dumps(run), flush=True)
            print(f"{task}, seed {seed}, {method}: {min(run.losses):.4f} of {min(base.losses):.4f}", file=sys.stderr)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    options.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options.add_argument("--epochs", type=int, default=6)
    options.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    methods = list(dict.fromkeys([BASE, *given.methods]))
    groups = [(task, seed) for task in given.tasks for seed in range(given.seeds)]
    if given.part is not None:
        work(groups[given.part :: PROCESSES], methods, given.epochs)
        return
    begun = time.monotonic()
    environ = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(Path(__file__)), *sys.argv[1:]]
    processes = [
        subprocess.Popen([*command, "--part", str(part)], env=environ, stdout=subprocess.PIPE, text=True)
        for part in range(PROCESSES)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a training failed: see above")
    runs = [Run(*json.loads(line)) for text in said for line in text.splitlines()]
    print("| task | method | kB per worker and step | times fewer | best loss | same loss | bytes to it: times fewer |")
    print("|---|---|---|---|---|---|---|")
    for task in given.tasks:
        mine = [run for run in runs if run.task == task]
        print("\n".join(rows(task, sorted(mine, key=lambda run: methods.index(run.method)))))
    print(f"\n{len(runs)} trainings in {time.monotonic() - begun:,.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
