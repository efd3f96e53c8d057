# backends: torch tensorflow jax
# agrees: rounding
"""Batches from Python generators, for training and for validation."""

import keras
import numpy as np

keras.utils.set_random_seed(20)
lookback, delay, batch_size = 20, 5, 32
signal = np.sin(np.arange(2000) / 15) + 0.3 * np.sin(np.arange(2000) / 4)
data = np.stack([signal, np.gradient(signal)], axis=-1).astype("float32")


def generator(data, lookback, delay, min_index, max_index, shuffle=False, batch_size=32, seed=0):
    rng = np.random.default_rng(seed)
    i = min_index + lookback
    while 1:
        if shuffle:
            rows = rng.integers(min_index + lookback, max_index - delay, size=batch_size)
        else:
            if i + batch_size >= max_index - delay:
                i = min_index + lookback
            rows = np.arange(i, min(i + batch_size, max_index - delay))
            i += len(rows)
        samples = np.stack([data[row - lookback : row] for row in rows])
        targets = data[rows + delay][:, :1]
        yield samples, targets


train_gen = generator(data, lookback, delay, 0, 1400, shuffle=True, batch_size=batch_size, seed=3)
test_gen = generator(data, lookback, delay, 1700, 2000, batch_size=batch_size)

model = keras.Sequential([keras.Input((lookback, 2)), keras.layers.GRU(12), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mae")
history = model.fit(train_gen, steps_per_epoch=15, epochs=3, verbose=0)
print("loss", history.history["loss"])
print("test mae", model.evaluate(test_gen, steps=5, verbose=0))
