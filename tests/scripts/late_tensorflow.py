"""Seeds everything, trains, and only then imports TensorFlow; prints whether it was there before, and what it draws."""

from __future__ import annotations

import sys

import keras
import models

import shoal

keras.utils.set_random_seed(11)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, verbose=0)
model.evaluate(x, y, verbose=0)
model.predict(x, verbose=0)
before = "tensorflow" in sys.modules

import tensorflow as tf  # noqa: E402

if shoal.is_chief():
    print("imported before:", before, "draws", tf.random.uniform([4]).numpy().tolist(), flush=True)
