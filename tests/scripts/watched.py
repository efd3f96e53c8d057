"""Trains with Monitors, asks for a checkpoint on the way, and tells what whoever watches was told.

watched.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import models

import shoal
from shoal import session
from shoal.callbacks import Monitor, TensorBoardScalars
from shoal.cluster.asking import ask
from shoal.cluster.messages import CheckpointRequest

reports: list[tuple[dict[str, float], int]] = []
run = session.current()


class AskForCheckpoint(keras.callbacks.Callback):
    """After the first epoch; and no batch begins before all that was asked for has come."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0 and shoal.is_chief():
            ask(run._folder, CheckpointRequest())
            self._until(lambda: run.save_now)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if shoal.is_chief() and self.params["epochs"] > 1 and batch == 1:
            self._until(lambda: monitor._asking is None or monitor._asking.found is not None or reports)

    def _until(self, heard: Any) -> None:
        deadline = time.monotonic() + 30.0
        while not heard():
            assert time.monotonic() < deadline, "never heard"
            time.sleep(0.01)


monitor = Monitor(lambda figures, step: reports.append((figures, step)), every=0.05)
board = Monitor(TensorBoardScalars(Path(sys.argv[1], "board")), every=3600.0)  # it reports at the end of the fit
keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
history = model.fit(
    x, y, batch_size=16, epochs=3, validation_data=(x, y), verbose=0, callbacks=[monitor, board, AskForCheckpoint()]
)
has_tensorflow = "tensorflow" in sys.modules
told = {"reports": reports, "tensorflow": has_tensorflow, "logs": run.recorder.logs, "history": history.history}
Path(sys.argv[1], f"{shoal.rank()}.json").write_text(json.dumps(told))
