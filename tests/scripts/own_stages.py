"""What a worker of a lean pipeline has of the model, during fit and after: `own_stages.py OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import models
from pipelined_models import skips

import shoal

out = Path(sys.argv[1])
told: dict[str, Any] = {}


def present(model: keras.Model) -> tuple[float, str]:
    """The part of the trained weights that can be read, and what reading another says."""
    found, said = 0, ""
    for variable in model.trainable_variables:
        try:
            keras.ops.convert_to_numpy(variable)
            found += 1
        except shoal.errors.UsageError as error:
            said = str(error)
    return found / len(model.trainable_variables), said


class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        told["here"], told["read"] = present(self.model)


out.mkdir(exist_ok=True)
keras.utils.set_random_seed(11)
with shoal.Pipeline(lean=True).scope():
    model = models.compile_for_classes(skips(), keras.optimizers.Adam(0.01))
x, y = models.images(64)
model.fit(x, y, batch_size=16, verbose=0, callbacks=[Looks()])
told["after"], _ = present(model)
try:
    model.fit(x, y, batch_size=16, verbose=0)
except shoal.errors.UsageError as error:
    told["again"] = str(error)
(out / f"{shoal.rank()}.json").write_text(json.dumps(told))
