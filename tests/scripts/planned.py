"""Trains a small model, and leaves traces of everything that it does: `planned.py OUT`. It knows nothing of Shoal."""

import hashlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
x, y = rng.normal(size=(96, 24)).astype("float32"), rng.integers(0, 3, 96)
layers = [keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(32, "relu")]
model = keras.Sequential([keras.layers.Input((24,)), *layers, keras.layers.BatchNormalization(), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
print("the script begins")


class Trace(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        (out / f"trained-{os.getpid()}").touch()


try:
    model.fit(x, y, batch_size=24, epochs=2, verbose=2, validation_split=0.25, callbacks=[Trace()])
    after = [float(keras.random.uniform((), seed=keras.random.SeedGenerator(1))), float(np.random.random())]
finally:
    model.save(out / "model.keras")
weights = hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest()
(out / "result.json").write_text(json.dumps({"weights": weights, "after": after}))
