# backends: jax tensorflow torch
# agrees: rounding
"""Tensors of the backend, lists, float64 arrays, integers, pandas and jagged dtypes as inputs of fit and predict."""

import keras
import numpy as np
import pandas as pd

keras.utils.set_random_seed(54)
rng = np.random.default_rng(54)
x = rng.normal(size=(192, 5))
y = x @ np.arange(5.0)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tensors = tf.constant(x), tf.constant(y)
elif keras.backend.backend() == "torch":
    import torch

    tensors = torch.from_numpy(x), torch.from_numpy(y)
else:
    import jax.numpy as jnp

    tensors = jnp.asarray(x), jnp.asarray(y)

inputs = {
    "tensors": tensors,
    "float64": (x, y),
    "pandas": (pd.DataFrame(x), pd.Series(y)),
    "column": (x.astype("float16"), y.reshape(-1, 1)),
    "integers": ((10 * x).astype("int64"), y.astype("int32")),
}
for name, (features, targets) in inputs.items():
    keras.utils.set_random_seed(54)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    history = model.fit(features, targets, epochs=2, batch_size=32, shuffle=False, verbose=0)
    predicted = model.predict(features, verbose=0)
    print(name, history.history["loss"], predicted.shape, float(np.mean(predicted)))
