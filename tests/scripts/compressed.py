"""Trains with a toy codec; every worker writes how often it has used it, and its weights.

compressed.py FOLDER allreduce|ps
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import models

import shoal

sys.path.append(str(Path(__file__).parent.parent))
from half_precision import Half

folder, strategy = sys.argv[1:]
codec = Half()
keras.utils.set_random_seed(5)
x, y = models.images()
kind = shoal.AllReduce if strategy == "allreduce" else shoal.ParameterServer
with kind(compress=codec).scope():
    model = models.dense()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
told = {"encoded": codec.encoded, "decoded": codec.decoded, "added": codec.added}
if shoal.rank() < shoal.size():  # servers may be ended as soon as all workers are done
    Path(folder, f"{shoal.rank()}.json").write_text(json.dumps(told | {"weights": models.weights_hash(model)}))
