"""Trains one model and writes the hash of what came of it: `golden.py MODEL OPTIMIZER VICTIM FOLDER`.

VICTIM is a member that is killed in the middle of the training, as `worker-1`; or `nobody`. Each worker writes a hash.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import models
import outcomes
import several_applies

import shoal

KILL_AT = 5  # the step after which it happens
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "averaged": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "accumulated": lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
}
MODELS = {
    "dense": (models.dense, models.images),
    "wide": (models.wide, models.images),
    "convolution": (models.convolution, models.images),
    "dropout": (models.dropout_and_batchnorm, models.images),
    "lstm": (models.embedding_and_lstm, models.sentences),
    "attention": (models.embedding_and_attention, models.sentences),
}


class Kill(keras.callbacks.Callback):
    """Once: a worker by itself, a server by the chief."""

    def __init__(self, victim: str, mark: Path) -> None:
        super().__init__()
        self.victim, self.mark, self.steps = victim, mark, 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        if self.steps == KILL_AT and self.victim != "nobody" and not self.mark.exists():
            pid = pids().get(self.victim)
            if pid == os.getpid() or (self.victim.startswith("server") and shoal.is_chief()):
                subprocess.run(["touch", self.mark], check=True)  # only the chief writes files itself
                os.kill(pid, signal.SIGKILL)


def pids() -> dict[str, int]:
    """Of all members of this run."""
    words = [sys.executable, "-m", "shoal", "status", "--json"]
    runs = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return {member["id"]: member["pid"] for run in runs for member in run.get("members", [])}


name, optimizer, victim, folder = *sys.argv[1:4], Path(sys.argv[4])
keras.utils.set_random_seed(11)
if name == "gan":
    model = several_applies.Game().two(OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]())
    x, y, optimizers = several_applies.data(48), None, [model.critic_optimizer, model.maker_optimizer]
else:
    make, data = MODELS[name]
    model = models.compile_for_classes(make(), OPTIMIZERS[optimizer]())
    (x, y), optimizers = data(), [model.optimizer]
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill(victim, folder / "killed")]).history
variables = [*model.variables, *(variable for optimizer in optimizers for variable in optimizer.variables)]
numbers = [float(value) for values in history.values() for value in values]
(folder / f"{os.getpid()}.hash").write_text(outcomes.told(variables, numbers)["hash"])
