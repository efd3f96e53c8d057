# backends: jax tensorflow torch
# agrees: rounding
"""Train, save, load, train on; with custom objects, from JSON, and weights by hand."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(88)


@keras.saving.register_keras_serializable(package="corpus")
class Scale(keras.layers.Layer):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor
        self.gain = self.add_weight(shape=(), initializer="ones", name="gain")

    def call(self, inputs):
        return inputs * self.gain * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


@keras.saving.register_keras_serializable(package="corpus")
def bounded_error(y_true, y_pred):
    return keras.ops.mean(keras.ops.tanh(keras.ops.square(y_true - y_pred)), axis=-1)


rng = np.random.default_rng(88)
x = rng.normal(size=(320, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)

inputs = keras.Input((5,))
outputs = keras.layers.Dense(1)(Scale(0.5)(keras.layers.Dense(12, activation="relu")(inputs)))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), bounded_error, metrics=["mae"])
first = model.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
model.save("half.keras")
before = model.predict(x, verbose=0)

loaded = keras.saving.load_model("half.keras")
print("same predictions:", bool(np.allclose(loaded.predict(x, verbose=0), before, atol=1e-5)))
second = loaded.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
print("loss", first.history["loss"] + second.history["loss"])

rebuilt = keras.models.model_from_json(loaded.to_json())
rebuilt.set_weights(loaded.get_weights())
print("layers", [layer["class_name"] for layer in json.loads(loaded.to_json())["config"]["layers"]])
rebuilt.compile("sgd", "mse")
print("rebuilt", rebuilt.evaluate(x, y, verbose=0))
loaded.save_weights("final.weights.h5")
