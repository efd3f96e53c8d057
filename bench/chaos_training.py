"""A small training that writes down every step it commits; what `chaos.py` disturbs: `chaos_training.py OUT [options]`.

Every worker appends its commits to OUT/<worker>.ledger. One metric counts how often each sample has counted in its
epoch: it travels with the gradients, so a sample that is lost or doubled shows in the history and in the weights. At
the end every worker that took part writes OUT/<worker>.json.

A file OUT/pace, if there is one, says how many seconds to rest after each step; a number below zero: do not go on.
OUT/awaited lists phases in which somebody is to be hit: the one between two fits lasts until it is not in it any more.
While it is there, every change of what a worker says it does takes a few milliseconds too, so that each phase of a step
can be hit from outside.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

# Keras imports these only because they are there. Without them a worker, of which many are started here, starts faster.
sys.modules.update(dict.fromkeys(("sklearn", "pandas")))

import keras
import numpy as np
from keras import ops

import shoal
import shoal.session
from chaos_moments import BETWEEN_FITS, SAVING
from shoal.hook.served import unit_update
from shoal.observe.phases import Activity, Phase
from shoal.strategies import slicing
from shoal.training.sliced_state import SlicedState

LINGER = (0.004, 0.05)  # seconds at most, when steps follow each other fast and when they do not


def worker() -> str:
    coordinator_link = shoal.session.current().coordinator_link
    return coordinator_link.member.id if coordinator_link is not None else "worker-0"


class Pace:
    """How slowly to go, as the disturber says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rng = random.Random(os.getpid())

    def now(self) -> float:
        try:
            return float(self._path.read_text())
        except (OSError, ValueError):
            return 0.0  # not there, or being written

    def wait_to_be_hit(self, doing: Activity) -> None:
        limit = time.monotonic() + 60
        while str(doing) in self._awaited() and time.monotonic() < limit:
            time.sleep(0.005)

    def _awaited(self) -> list[str]:
        try:
            return self._path.with_name("awaited").read_text().splitlines()
        except OSError:
            return []

    def rest(self) -> None:
        while (pause := self.now()) < 0:
            time.sleep(0.005)
        time.sleep(pause)

    def linger(self) -> None:
        if pause := self.now():
            time.sleep(self._rng.uniform(0, sorted((LINGER[0], pause / 5, LINGER[1]))[1]))


def record_slowly(pace: Pace) -> None:
    """Every phase that is recorded lasts a moment."""
    session = shoal.session.Session
    record = session.record

    def slowly(self: Any, phase: Phase, detail: str = "", step: int | None = None) -> None:
        record(self, phase, detail, step)
        pace.linger()

    session.record = slowly  # type: ignore[method-assign]


def slice_finely(pace: Pace) -> None:
    """The update in units of a few numbers, each of which takes a moment, too."""
    slicing.UNIT, slicing.SIZES = 64, (16, 64)
    unit_update.SIZES = slicing.SIZES
    updated = SlicedState.updated

    def slowly(self: SlicedState, number: int) -> None:
        pace.linger()
        updated(self, number)
        pace.linger()

    SlicedState.updated = slowly  # type: ignore[method-assign]
    # For a callback of a user's own all is copied after each step, since it may look. This one does not.
    Ledger.on_train_batch_end.__module__ = "keras.of_chaos"


class Ledger(keras.callbacks.Callback):
    """Writes down what was committed, at once and whole: a line survives the death of its writer."""

    def __init__(self, fit: int, pace: Pace, lines: int, raises: Raises) -> None:
        super().__init__()
        self.fit = fit
        self.epoch = 0
        self._pace = pace
        # In a list: an attribute that is a number would be taken over from another worker.
        self._lines = (object(), lines)
        self._raises = raises

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        line = [time.monotonic(), self.fit, self.epoch, batch, float(logs["loss"]).hex()]
        os.write(self._lines[1], f"{json.dumps(line)}\n".encode())
        self._raises.at(self.fit, self.epoch, batch)
        self._pace.rest()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        line = {"fit": self.fit, "epoch": epoch, "logs": {name: float(value).hex() for name, value in logs.items()}}
        os.write(self._lines[1], f"{json.dumps(line)}\n".encode())


class Raises:
    """An error in the script, on one worker or on all."""

    def __init__(self, who: str | None, fit: int, epoch: int, batch: int) -> None:
        self._who = who
        self._when = (fit, epoch, batch)

    def at(self, *when: int) -> None:
        if when == self._when and self._who in (worker(), "all"):
            raise ArithmeticError("the numbers do not add up")


class Counted(keras.metrics.Metric):
    """How often each sample counted; its result is the furthest from once."""

    def __init__(self, samples: int, name: str = "miscounted") -> None:
        super().__init__(name=name)
        self.samples = samples
        self.counts = self.add_variable((samples,), "zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ids = ops.cast(y_true[:, 1], "int32")
        self.counts.assign_add(ops.sum(ops.one_hot(ids, self.samples, dtype="float32"), axis=0))

    def result(self) -> Any:
        return ops.max(ops.abs(self.counts - 1.0))

    def get_config(self) -> dict[str, Any]:
        return {"samples": self.samples, "name": self.name}


@keras.saving.register_keras_serializable("chaos")
class SlowToSave(keras.layers.Dense):
    """So that a save can be hit in the middle."""

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if Path(os.environ.get("CHAOS_SLOW_SAVE", "/nowhere")).exists():
            time.sleep(0.3)


@keras.saving.register_keras_serializable("chaos")
def squared_error(y_true: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y_pred - y_true[:, :1]), axis=-1)


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The second column of the targets is the sample's number."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(samples, 8)).astype("float32")
    y = np.stack([np.sin(x[:, 0] * x[:, 1]), np.arange(samples)], axis=1).astype("float32")
    return x, y


def in_shards(x: np.ndarray, y: np.ndarray, batch: int) -> Any:
    """The same samples as a stream of six shards. The last batch is smaller, so that some of them end before others."""
    shards = 6
    each = batch // shards

    def make(shard: int) -> Any:
        for first in range(shard * each, len(x), batch):
            yield x[first : first + each], y[first : first + each]

    return shoal.stream(make, shards)


def make_model(samples: int, width: int) -> keras.Model:
    random.seed(3)  # all that Keras's layers need; `keras.utils.set_random_seed` would import TensorFlow
    layers = [keras.layers.Input((8,)), keras.layers.Dense(width, "tanh"), keras.layers.Dropout(0.2), SlowToSave(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), squared_error, metrics=[Counted(samples)])
    return model


def weights_hash(model: keras.Model) -> str:
    """Of weights, optimizer and random numbers."""
    digest = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).tobytes())
    return digest.hexdigest()


def many_callbacks(out: Path) -> list[Any]:
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=False),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.7, patience=0, min_delta=0.01),
        keras.callbacks.CSVLogger(str(out / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(out / "best.keras"), "val_loss", save_best_only=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help="per epoch")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--width", type=int, default=16, help="of the hidden layer")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--callbacks", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--sliced", action="store_true", help="each worker updates a slice of the weights")
    parser.add_argument("--stream", action="store_true", help="the data is a stream in shards")
    parser.add_argument("--raise-on", default=None, help="a worker, or all")
    parser.add_argument("--raise-at", type=int, nargs=3, default=(0, 0, 0), metavar="N", help="fit, epoch, batch")
    options = parser.parse_args()
    if (options.out / "pace").exists():
        time.sleep(0.3)  # so that one who is starting can be hit
    out: Path = options.out
    out.mkdir(exist_ok=True)
    pace = Pace(out / "pace")
    record_slowly(pace)
    run = shoal.session.current()
    run.rank_was_asked = True  # every worker has files of its own
    lines = os.open(out / f"{worker()}.ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    samples = options.batch * options.steps - 5  # the last batch is smaller
    x, y = data(samples)
    if options.sliced:
        slice_finely(pace)
    with shoal.AllReduce(sliced=options.sliced).scope():
        model = make_model(samples, options.width)
    raises = Raises(options.raise_on, *options.raise_at)
    histories = []
    for number in range(options.fits):
        if number:
            run.record(BETWEEN_FITS.phase, BETWEEN_FITS.detail)
            pace.wait_to_be_hit(BETWEEN_FITS)
        callbacks = [Ledger(number, pace, lines, raises), *(many_callbacks(out) if options.callbacks else ())]
        held_out = (x, y) if options.validate else None
        shown = {"verbose": 0, "callbacks": callbacks, "validation_data": held_out}
        if options.stream:
            history = model.fit(in_shards(x, y, options.batch), epochs=options.epochs, **shown)
        else:
            history = model.fit(x, y, batch_size=options.batch, epochs=options.epochs, **shown)
        histories.append(history.history)
    told = {"history": histories, "evaluated": model.evaluate(x, y, batch_size=options.batch, verbose=0)}
    told["predicted"] = hashlib.sha256(model.predict(x, batch_size=64, verbose=0).tobytes()).hexdigest()
    if options.save:
        run.record(SAVING.phase, SAVING.detail)
        if (out / "pace").exists():
            time.sleep(0.05)  # so that it is seen; `save` itself says other things
        model.save(out / "model.keras")
        loaded = keras.models.load_model(out / "model.keras", custom_objects={"Counted": Counted})
        told["saved"] = all(
            np.array_equal(a, b) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True)
        )
    if not run.worker_group.is_late:  # one that came when the last fit was over has the results, not the weights
        told["weights"] = weights_hash(model)
        draft = out / f".{worker()}"
        draft.write_text(json.dumps(told))
        draft.replace(out / f"{worker()}.json")


main()
