"""What scripts do with files around a training: `files.py FOLDER URL [DEATH …]`. Knows nothing of other workers.

The URL is one of a table. With deaths, as WORKER:PLACE, a worker dies there in the middle of a file.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import json
import os
import pickle
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import h5py
import keras
import numpy as np
import pandas as pd

out = Path(sys.argv[1])
url = sys.argv[2]
deaths = sys.argv[3:]


def maybe_die(place: str, file: IO[Any] | None = None) -> None:
    if deaths:
        from shoal import session

        if f"{session.current().me}:{place}" in deaths:
            if file is not None:
                file.flush()
            os.kill(os.getpid(), signal.SIGKILL)


# Folders: made, found, removed and made again.
shutil.rmtree(out, ignore_errors=True)
os.makedirs(out / "logs")
os.mkdir(out / "pictures")
for again in ("pictures", "more"):
    try:
        os.mkdir(out / again)
    except FileExistsError:
        (out / "already-there.txt").write_text(again)
shutil.rmtree(out / "more")
os.makedirs(out / "more" / "deep", exist_ok=True)
if os.path.exists(out / "logs" / "last.txt"):
    raise AssertionError("nobody has written it")
stamped = out / f"run-{time.time_ns()}"  # another one on every worker
os.makedirs(stamped)
(stamped / "settings.json").write_text("{}")
log = open(out / "logs" / "train.csv", "w")  # noqa: SIM115  # it stays open all the time, as in many scripts

# Data: written unless it is there, and read.
if not os.path.exists(out / "data.csv"):
    table = pd.DataFrame({name: np.linspace(0, 1, 64) for name in "abcd"})
    with open(out / "data.csv", "w") as file:
        file.write(table[:32].to_csv(index=False))
        maybe_die("data", file)
        file.write(table[32:].to_csv(index=False, header=False))
table = pd.read_csv(out / "data.csv")
assert len(table) == 64
table.to_csv(out / "again.csv", index=False)
pd.testing.assert_frame_equal(pd.read_csv(out / "again.csv"), table)
x = table.to_numpy("float32")
np.save(out / "x.npy", x)
np.savez(out / "both.npz", x=x, y=x.sum(axis=1))
np.testing.assert_array_equal(np.load(out / "x.npy"), x)
y = np.load(out / "both.npz")["y"]
with h5py.File(out / "x.h5", "w") as file:
    file["x"] = x
with h5py.File(out / "x.h5") as file:
    np.testing.assert_array_equal(file["x"][:], x)
cache = out / "cache.pkl"
if cache.exists():
    with cache.open("rb") as file:
        features = pickle.load(file)
else:
    features = {"mean": x.mean()}
    with cache.open("wb") as file:
        pickle.dump(features, file)

# Archives and downloads.
with zipfile.ZipFile(out / "texts.zip", "w") as archive:
    for n in range(20):
        archive.writestr(f"texts/{n}.txt", f"text {n}\n" * 200)
urllib.request.urlretrieve((out / "texts.zip").absolute().as_uri(), out / "fetched.zip")
urllib.request.urlretrieve(url, out / "fetched.csv")
assert len(pd.read_csv(out / "fetched.csv")) == 1
maybe_die("fetched")
if not (out / "texts").is_dir():
    with zipfile.ZipFile(out / "fetched.zip") as archive:
        archive.extractall(out)
assert [len((out / "texts" / f"{n}.txt").read_text().split()) for n in range(20)] == [400] * 20
os.remove(out / "fetched.zip")
with tarfile.open(out / "texts.tar.gz", "w:gz") as tar:
    tar.add(out / "texts", arcname="tarred")
with tarfile.open(out / "texts.tar.gz") as tar:
    tar.extractall(out / "more")
shutil.copytree(out / "texts", out / "copied")
shutil.move(out / "copied", out / "moved")
shutil.copy(out / "data.csv", out / "more" / "data.csv")
os.makedirs(out / "keras")
fetched = keras.utils.get_file("g.csv", url, cache_dir=str(out / "keras"))
assert len(pd.read_csv(fetched)) == 1

# Files that are written many times, and temporary ones.
for n in range(3):
    (out / "scratch.txt").write_text(str(n))
    assert (out / "scratch.txt").read_text() == str(n)
    with open(out / "lines.txt", "a") as file:
        file.write(f"{n}\n")
os.remove(out / "scratch.txt")
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "mine").write_text(folder)
    shutil.move(Path(folder, "mine"), out / "was-temporary")
assert (out / "was-temporary").exists()
(out / "draft.json").write_text(json.dumps({"columns": list(table)}))
os.replace(out / "draft.json", out / "columns.json")
assert sorted(os.listdir(out / "texts")) == sorted(os.listdir(out / "moved"))


class Pictures(keras.callbacks.Callback):
    """Saves one per epoch, and a film of them at the end."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with open(out / "pictures" / f"{epoch:02}.png", "wb") as file:
            file.write(b"half")
            maybe_die(f"epoch{epoch}", file)
            file.write(b" and half")
        log.write(f"{epoch}\n")
        with open(out / "logs" / "epochs.txt", "a") as lines:
            lines.write(f"{epoch}\n")

    def on_train_end(self, logs: Any = None) -> None:
        names = sorted(glob.glob(str(out / "pictures" / "*.png")))
        (out / "film.gif").write_bytes(b"".join(Path(name).read_bytes() for name in names))


def add_line(name: str, line: object) -> None:
    """For real, on whichever worker: a path in bytes is nobody's business."""
    descriptor = os.open(os.fsencode(out / name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


class Own(keras.callbacks.CSVLogger):
    """A script's own kind of one that writes."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        add_line("own-epochs", epoch)


class Reporter(keras.callbacks.Callback):
    """Of a package that reports somewhere. It predicts and evaluates, which nobody else does."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rows = len(self.model.predict(x, verbose=0))
        error = self.model.evaluate(x, y, verbose=0)[1]
        add_line("reported", f"{epoch} {rows} {abs(error - float(logs['mae'])) < 1}")


Reporter.__module__ = "wandb.integration.keras.callbacks.metrics_logger"


class Evaluating(Reporter):
    """A script's own kind of it."""


class Checkpointer:
    """What OrbaxCheckpoint uses of Orbax."""

    def __init__(self, directory: Any, **more: Any) -> None:
        self._directory = directory

    def save_checkpointables_async(self, step: int, payload: Any) -> Future[None]:
        add_line("orbax", f"{step} {sorted(payload)} {self._directory}")
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def close(self) -> None:
        pass


policies = SimpleNamespace(LatestN=lambda count: count, FixedIntervalPolicy=lambda count: count)
training = SimpleNamespace(Checkpointer=Checkpointer, preservation_policies=policies, save_decision_policies=policies)
orbax, multihost = ModuleType("orbax.checkpoint"), SimpleNamespace(is_jax_distributed_client_initialized=lambda: False)
v1 = SimpleNamespace(training=training, Context=contextlib.nullcontext)
vars(orbax).update(v1=v1, multihost=multihost)
sys.modules |= {"orbax": ModuleType("orbax"), "orbax.checkpoint": orbax}


keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
new = out / "new" / "folder"
callbacks = [
    Pictures(),
    Own(str(out / "logs" / "own.csv")),
    Evaluating(),
    keras.callbacks.OrbaxCheckpoint("steps", monitor="loss", save_best_only=True),
    keras.callbacks.ModelCheckpoint(str(new / "epoch-{epoch}.keras")),
    keras.callbacks.ModelCheckpoint(str(out / "best.keras"), monitor="loss", save_best_only=True),
    keras.callbacks.ModelCheckpoint(str(stamped / "last.weights.h5"), save_weights_only=True),
]
history = model.fit(x, y, epochs=4, batch_size=16, verbose=0, shuffle=False, callbacks=callbacks)
log.close()
with open(out / "logs" / "own.csv") as file:
    rows = [int(row["epoch"]) for row in csv.DictReader(file)]
    assert rows == [0, 1, 2, 3] or deaths  # who dies in a callback may take its row along
assert (out / "film.gif").read_bytes() == b"half and half" * 4
maybe_die("trained")

# Results.
model.save(out / "model.keras")
loaded = keras.models.load_model(out / "model.keras")
np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
model.load_weights(stamped / "last.weights.h5")
assert sorted(os.listdir(stamped)) == ["last.weights.h5", "settings.json"]
with open(out / "result.json", "w") as file:
    file.write('{"epochs": ')
    maybe_die("result", file)
    file.write(f"{len(history.history['loss'])}}}")
assert json.loads((out / "result.json").read_text()) == {"epochs": 4}
assert keras.models.load_model(out / "best.keras").predict(x, verbose=0).shape == (64, 1)
with zipfile.ZipFile(out / "results.zip", "w") as archive:
    archive.write(out / "result.json")
(out / "end.txt").write_text("end")
