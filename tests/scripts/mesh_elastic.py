"""Trains a small model on whatever devices each worker has; one worker kills itself: `mesh_elastic.py EPOCHS [FLAG]`.

FLAG: a file that is there once the kill has happened.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import keras
import models

import shoal

FLAG = Path(sys.argv[2]) if len(sys.argv) > 2 else None


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if FLAG is not None and self.steps == 4 and shoal.rank() == 1 and not FLAG.exists():
            FLAG.touch()
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), keras.optimizers.Adam(0.01), metrics=["accuracy"])
x, y = models.images(64)
model.fit(x, y, batch_size=16, epochs=int(sys.argv[1]), verbose=0, callbacks=[Kill()])
loss, _ = model.evaluate(x, y, verbose=0)
if shoal.is_chief():
    print("loss", f"{loss:.6f}", "weights", models.weights_hash(model), flush=True)
