"""Seeds everything, trains, saves the model, and only then uses TensorFlow and scikit-learn.

Prints whether they, and JAX, were there before, what TensorFlow draws, and what Keras's wrapper for scikit-learn is.
"""

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
model.save("saved.keras")
before = [name for name in ("tensorflow", "sklearn", "jax") if name in sys.modules]

if shoal.is_chief():
    import tensorflow as tf

    wrapper = keras.wrappers.SKLearnClassifier
    assert "sklearn" in sys.modules
    drawn = tf.random.uniform([4]).numpy().tolist()
    print("imported before:", before, "then:", drawn, wrapper.__mro__, flush=True)
