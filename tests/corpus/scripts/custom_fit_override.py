# backends: jax tensorflow torch
# agrees: rounding
"""A model that overrides fit, compute_loss and compute_metrics, and calls its parents'."""

import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(5)


class Curriculum(keras.Model):
    """Trains on easy samples first."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, activation="tanh")
        self.out = keras.layers.Dense(1)
        self.error = keras.metrics.Mean(name="error")

    def call(self, x, training=False):
        h = self.hidden(x)
        if training:
            h = h * 1.0
        return self.out(h)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + 0.01 * ops.mean(ops.square(y_pred))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.error.update_state(ops.abs(y - y_pred))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def fit(self, x, y, *, difficulty, stages=2, **kwargs):
        histories = []
        for stage in range(stages):
            limit = np.quantile(difficulty, (stage + 1) / stages)
            chosen = difficulty <= limit
            print("stage", stage, "with", int(chosen.sum()), "samples")
            histories.append(super().fit(x[chosen], y[chosen], **kwargs))
        return histories


rng = np.random.default_rng(5)
x = rng.normal(size=(320, 6)).astype("float32")
y = np.abs(x).sum(axis=1, keepdims=True).astype("float32")
model = Curriculum()
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mae", metrics=["mse"])
for history in model.fit(x, y, difficulty=y[:, 0], epochs=3, batch_size=32, shuffle=False, verbose=0):
    print(history.history)
print("evaluate", model.evaluate(x, y, verbose=0, return_dict=True))
