# backends: jax tensorflow torch
# agrees: rounding
"""A script that never trains: summaries, predictions, an export."""

import keras
import numpy as np

keras.utils.set_random_seed(4)
inputs = keras.Input((10,), name="features")
x = keras.layers.Dense(20, activation="relu")(inputs)
shortcut = keras.layers.Dense(5)(inputs)
outputs = keras.layers.add([keras.layers.Dense(5)(x), shortcut])
model = keras.Model(inputs, outputs, name="untrained")
model.summary()
try:
    keras.utils.plot_model(model, "model.png", show_shapes=True)
except (ImportError, OSError) as error:
    print("no picture:", type(error).__name__)
print([layer.name for layer in model.layers if layer.trainable_weights])
predictions = model.predict(np.linspace(-1, 1, 640).reshape(64, 10).astype("float32"), batch_size=16, verbose=0)
print("predictions", predictions.shape, float(np.abs(predictions).mean()))
with open("architecture.json", "w") as file:
    file.write(model.to_json(indent=1))
