"""Imports TensorFlow before keras, as most scripts of TensorFlow's do, and comes to keras through it: `… OUT`.

Trains, saves the model by all the names that Keras has for it, and writes who wrote how many files.
It changes the environment before that: so keras is not imported for it beforehand.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf  # noqa: I001
from tensorflow.keras import layers
from tensorflow.keras.models import save_model
import importlib
import json
from pathlib import Path

import numpy as np

import shoal.session

model = tf.keras.Sequential([tf.keras.Input((3,)), layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((32, 3)), np.ones((32, 1))
model.fit(x, y, batch_size=8, verbose=0)
steps = [shoal.session.current().trained]

keras = importlib.reload(importlib.import_module("keras"))
model.fit(x, y, batch_size=8, verbose=0)
steps.append(shoal.session.current().trained)

saving = importlib.import_module("keras.src.saving.saving_lib")
write, written = saving.save_model, []
saving.save_model = lambda model, path, *more, **options: (
    written.append(str(path)),
    write(model, path, *more, **options),
)
for number, save in enumerate(
    (save_model, tf.keras.models.save_model, keras.saving.save_model, keras.models.save_model)
):
    save(model, f"{number}.keras")
model.save("4.keras")
Path(f"{sys.argv[1]}.{shoal.rank()}").write_text(json.dumps([steps, written]))
