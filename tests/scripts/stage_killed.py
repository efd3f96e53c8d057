"""Trains in stages while workers kill themselves, in the middle of a step.

    stage_killed.py OUT KILLS WORKERS [lean]

A kill happens when all workers are there, so that every stage keeps a holder; with `lean`, where it takes the last one,
not before there is a checkpoint. While somebody is missing, steps are slow, so that there are enough of them for all
kills.
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
import models
from pipelined_models import skips

import shoal

out, kills, WORKERS, lean = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["lean"]
STEPS = 64


class Killed(keras.callbacks.Callback):
    """Whoever has the rank that is drawn kills itself a moment after a step has begun."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        pids = [path.read_text() for path in out.glob("kill-*")]
        done = len(pids)
        if done and done <= kills and shoal.size() < WORKERS:
            time.sleep(0.5)
        if any(lives(pid) for pid in pids):
            return  # somebody is about to be gone
        if done >= kills or batch < 2 + done or shoal.size() < WORKERS:
            return
        if lean and not list(out.parent.glob("checkpoints/step-*")):
            time.sleep(0.2)
            return
        drawn = random.Random(f"{kills} {done}")
        if shoal.rank() != drawn.randrange(WORKERS):
            return
        (out / f"kill-{done}").write_text(str(os.getpid()))
        threading.Thread(target=kill, args=(drawn.uniform(0.0, 0.2),), daemon=True).start()


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
with shoal.Pipeline(lean=lean).scope():
    model = models.compile_for_classes(skips(), keras.optimizers.Adam(0.01), metrics=["accuracy"])
x, y = models.images(16 * STEPS)
history = model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[Killed()])
told = {"weights": models.weights_hash(model), "loss": [value.hex() for value in history.history["loss"]]}
(out / f"{shoal.rank()}.json").write_text(json.dumps(told))
