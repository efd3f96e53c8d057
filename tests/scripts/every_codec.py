"""Trains a model with each codec, or only with the one that is named, and writes the hashes of its weights and losses.

every_codec.py OUT.json [CODEC [EPOCHS]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import models

import shoal

CODECS = {
    "None": None,
    "bf16": "bf16",
    "int8": "int8",
    "topk": shoal.TopK(0.05),
    "topk of int8": shoal.ErrorFeedback(shoal.TopK(0.05, values="int8")),
    "lowrank": shoal.LowRank(rank=2),
}


def train(compress: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(5)
    with shoal.AllReduce(compress=compress).scope():
        model = models.compile_for_classes(models.wide(), keras.optimizers.SGD(0.05, momentum=0.9))
    history = model.fit(*models.images(models.WHOLE_BATCHES), batch_size=16, epochs=EPOCHS, verbose=0)
    return {"weights": models.weights_hash(model), "loss": history.history["loss"][-1]}


def float16_with_overflow(compress: Any) -> dict[str, Any]:
    """The first steps overflow and are skipped: an overflow in any piece is everybody's."""
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(11)
    with shoal.AllReduce(compress=compress).scope():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**24)
        model = models.compile_for_classes(models.wide(), optimizer)
    model.fit(*models.images(models.WHOLE_BATCHES), batch_size=16, epochs=4, verbose=0)
    keras.config.set_dtype_policy("float32")
    return {"weights": models.weights_hash(model), "skipped": 12 - int(optimizer.inner_optimizer.iterations)}


out, *named = sys.argv[1:]
EPOCHS = int(named.pop()) if len(named) > 1 else 3
told = {name: train(codec) for name, codec in CODECS.items() if not named or name in named}
if not named:
    told |= {f"{name}, float16 with overflow": float16_with_overflow(CODECS[name]) for name in ("bf16", "int8", "topk")}
Path(out).mkdir(exist_ok=True)
Path(out, f"{shoal.rank()}.json").write_text(json.dumps(told))
