"""Seeds everything, trains, saves the model, and only then uses TensorFlow, scikit-learn and PyTorch's compiler.

Prints whether they, and JAX, were there before, what TensorFlow draws, what Keras's wrapper for scikit-learn is, and
what a compiled function makes of Keras's random numbers.
"""

from __future__ import annotations

import sys

import keras
import models

import shoal

keras.utils.set_random_seed(11)
begun = set(sys.modules)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
model.fit(x, y, verbose=0)
by_each = sorted({name.partition(".")[0] for name in set(sys.modules) - begun} - {"keras", "shoal"})
model.evaluate(x, y, verbose=0)
model.predict(x, verbose=0)
model.save("saved.keras")
before = [name for name in ("torch._dynamo", "tensorflow", "sklearn", "jax") if name in sys.modules]

if shoal.is_chief():
    import tensorflow as tf
    import torch

    compiled = torch.compile(lambda x: keras.random.dropout(2 * x, 0.5, seed=3), backend="eager")
    wrapper = keras.wrappers.SKLearnClassifier
    assert "sklearn" in sys.modules
    drawn = tf.random.uniform([4]).numpy().tolist()
    print("imported by each worker:", by_each, flush=True)
    print("imported before:", before, "then:", drawn, wrapper.__mro__, compiled(torch.ones(8)), flush=True)
