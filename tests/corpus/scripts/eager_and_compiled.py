# backends: jax tensorflow
# agrees: rounding
"""The same model compiled in every way: eagerly, with and without XLA, several steps at once."""

import keras
import numpy as np

rng = np.random.default_rng(60)
x = rng.normal(size=(128, 4)).astype("float32")
y = np.prod(x[:, :2], axis=1, keepdims=True)
for options in ({"run_eagerly": True}, {"jit_compile": True}, {"jit_compile": False}, {"steps_per_execution": 2}):
    keras.utils.set_random_seed(60)
    model = keras.Sequential(
        [keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", **options)
    history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    print(options, history.history["loss"], model.evaluate(x, y, verbose=0))
