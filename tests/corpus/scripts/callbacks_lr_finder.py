# backends: tensorflow torch
# agrees: rounding
"""A learning rate finder: the rate grows with every batch, training stops when the loss explodes, weights go back."""

import keras
import numpy as np

keras.utils.set_random_seed(3)


class LRFinder(keras.callbacks.Callback):
    def __init__(self, start=1e-4, end=10.0, steps=40):
        super().__init__()
        self.factor, self.start, self.steps = (end / start) ** (1 / steps), start, steps
        self.rates, self.losses, self.best = [], [], np.inf

    def on_train_begin(self, logs=None):
        self.weights = self.model.get_weights()
        self.model.optimizer.learning_rate.assign(self.start)

    def on_train_batch_end(self, batch, logs=None):
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.rates.append(rate)
        self.losses.append(logs["loss"])
        self.best = min(self.best, logs["loss"])
        if logs["loss"] > 4 * self.best or len(self.rates) >= self.steps:
            self.model.stop_training = True
        self.model.optimizer.learning_rate.assign(rate * self.factor)

    def on_train_end(self, logs=None):
        self.model.set_weights(self.weights)


class OneCycle(keras.callbacks.Callback):
    def __init__(self, peak, steps):
        super().__init__()
        self.peak, self.steps, self.step = peak, steps, 0

    def on_train_batch_begin(self, batch, logs=None):
        phase = self.step / self.steps
        self.model.optimizer.learning_rate = self.peak * (1 - abs(2 * phase - 1)) + 1e-5
        self.step += 1


rng = np.random.default_rng(3)
x = rng.normal(size=(640, 8)).astype("float32")
y = x @ rng.normal(size=(8, 1)).astype("float32")
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
finder = LRFinder()
model.fit(x, y, batch_size=16, epochs=1, shuffle=False, callbacks=[finder], verbose=0)
best = finder.rates[int(np.argmin(finder.losses))] / 10
print(len(finder.rates), "rates tried; chosen", best)
history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, callbacks=[OneCycle(best, 60)], verbose=0)
print("loss", history.history["loss"])
