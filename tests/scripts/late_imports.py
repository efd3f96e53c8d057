"""Seeds everything, trains, and only then uses TensorFlow, scikit-learn and pandas; prints whether they were there
before, what TensorFlow draws, what Keras's wrapper for scikit-learn is, and what a frame adds up to.
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


def is_there(name: str) -> bool:
    return name in sys.modules and type(sys.modules[name]).__name__ != "_LazyModule"


before = [name for name in ("tensorflow", "sklearn", "pandas", "jax") if is_there(name)]

if shoal.is_chief():
    import pandas
    import tensorflow as tf

    wrapper = keras.wrappers.SKLearnClassifier
    assert "sklearn" in sys.modules
    frame = pandas.DataFrame({"a": [1, 2]})
    drawn = tf.random.uniform([4]).numpy().tolist()
    print("imported before:", before, "then:", drawn, wrapper.__mro__, frame.sum().tolist(), flush=True)
