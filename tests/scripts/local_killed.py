"""Trains with LocalSGD while workers kill themselves, in the middle of a round.

local_killed.py OUT KILLS [EPOCHS [FRAGMENTS]]

A kill happens when all workers are there. While somebody is missing, rounds are slow, so that there are enough of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import local_sgd
import models

import shoal

out, kills = Path(sys.argv[1]), int(sys.argv[2])
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
STREAMING = int(sys.argv[4]) if len(sys.argv) > 4 else None
WORKERS = 3


class Killed(keras.callbacks.Callback):
    """Whoever has the rank that is drawn kills itself a moment after a round has begun."""

    def __init__(self) -> None:
        super().__init__()
        self._rounds = 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self._rounds += 1
        pids = [path.read_text() for path in out.glob("kill-*")]
        done = len(pids)
        if done and done <= kills and shoal.size() < WORKERS:
            time.sleep(0.5)
        if done >= kills or any(lives(pid) for pid in pids) or shoal.size() < WORKERS or self._rounds < 2:
            return
        drawn = random.Random(f"{kills} {done}")
        if shoal.rank() != drawn.randrange(WORKERS):
            return
        (out / f"kill-{done}").write_text(str(os.getpid()))
        threading.Thread(target=kill, args=(drawn.uniform(0.0, 0.1),), daemon=True).start()


def lives(pid: str) -> bool:
    """A process that is dead, and that nobody has looked after yet, has no command line."""
    try:
        return not pid or bool(Path("/proc", pid, "cmdline").read_bytes())
    except OSError:
        return False


def kill(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


out.mkdir(exist_ok=True)
keras.utils.set_random_seed(11)
with shoal.LocalSGD(every=3, replicas=4, compress=shoal.TopK(0.05), streaming=STREAMING).scope():
    model = models.compile_for_classes(
        models.dropout_and_batchnorm(), keras.optimizers.Adam(0.01), metrics=["accuracy"]
    )
x, y = models.images(16 * 30)
history = model.fit(x, y, batch_size=16, epochs=EPOCHS, verbose=0, callbacks=[Killed()])
told = {"weights": local_sgd.hashed(model.variables), "loss": [value.hex() for value in history.history["loss"]]}
if shoal.is_chief():
    told["optimizer"] = local_sgd.hashed(model.optimizer.variables)
(out / f"{shoal.rank()}.json").write_text(json.dumps(told))
