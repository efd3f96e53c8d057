# backends: jax torch
# agrees: trend
"""Random search by hand. Some combinations do not work; the search goes on without them."""

import itertools
import random
import keras
import numpy as np
from sklearn.datasets import load_diabetes

keras.utils.set_random_seed(33)
random.seed(33)
x, y = load_diabetes(return_X_y=True)
y = (y - y.mean()) / y.std()
x = x / x.std(axis=0)

space = {
    "units": [0, 8, 16],
    "activation": ["relu", "swisch", "tanh"],
    "learning_rate": [1e-3, 1e-2],
}
combinations = [dict(zip(space, values)) for values in itertools.product(*space.values())]
random.shuffle(combinations)

results = []
for trial, hp in enumerate(combinations[:8]):
    try:
        model = keras.Sequential(
            [
                keras.layers.Input((10,)),
                keras.layers.Dense(hp["units"], activation=hp["activation"]),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(hp["learning_rate"]), "mse")
        history = model.fit(x[:350], y[:350], validation_data=(x[350:], y[350:]), epochs=3, verbose=0)
    except ValueError as error:
        print(f"trial {trial} failed: {str(error).splitlines()[0][:40]}")
        continue
    results.append((history.history["val_loss"][-1], hp))
print(len(results), "trials came to an end")
best_loss, best = min(results, key=lambda result: result[0])
print("best validation loss", best_loss)
