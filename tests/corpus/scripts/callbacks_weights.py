# backends: jax tensorflow torch
# agrees: rounding
"""Callbacks that change weights while a fit goes on: clipping after each batch, averages at the end, layers unfrozen."""

import keras
import numpy as np

keras.utils.set_random_seed(4)


class ClipWeights(keras.callbacks.Callback):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def on_train_batch_end(self, batch, logs=None):
        for layer in self.model.layers:
            if isinstance(layer, keras.layers.Dense):
                layer.set_weights([np.clip(weight, -self.limit, self.limit) for weight in layer.get_weights()])


class StochasticWeightAveraging(keras.callbacks.Callback):
    def __init__(self, start_epoch):
        super().__init__()
        self.start_epoch, self.count, self.mean = start_epoch, 0, None

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self.start_epoch:
            weights = self.model.get_weights()
            self.count += 1
            self.mean = weights if self.mean is None else [m + (w - m) / self.count for m, w in zip(self.mean, weights)]

    def on_train_end(self, logs=None):
        self.model.set_weights(self.mean)


rng = np.random.default_rng(4)
x = rng.normal(size=(320, 6)).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")


def network():
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


model = network()
history = model.fit(x, y, batch_size=32, epochs=4, shuffle=False, callbacks=[ClipWeights(0.3)], verbose=0)
print("clipped", history.history["loss"], float(max(np.abs(w).max() for w in model.get_weights())))
model = network()
history = model.fit(x, y, batch_size=32, epochs=4, shuffle=False, callbacks=[StochasticWeightAveraging(1)], verbose=0)
print("averaged", history.history["loss"], "evaluated", model.evaluate(x, y, verbose=0))
model = network()
model.layers[0].trainable = False
model.compile(keras.optimizers.SGD(0.1), "mse")
frozen = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
model.layers[0].trainable = True
model.compile(keras.optimizers.SGD(0.05), "mse")
thawed = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
print("frozen, then not", frozen.history["loss"], thawed.history["loss"])
