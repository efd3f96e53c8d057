"""A small training, with one thing wrong with it, as the first argument says."""

import os
import sys
import time

import keras
import numpy as np

WRONG = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 12.0  # that it trains for, about
BEGINS = sys.argv[3:]  # the time is counted from when this file is there
LARGE = WRONG in ("link", "checkpoints")
WIDTH = 1024 if LARGE else 256
INPUTS = 64
BATCH = {"pieces": 64, "link": 64, "checkpoints": 64, "undisturbed": 2048, "unequal": 2048}.get(WRONG, 512)
ROWS = (4 if WRONG == "link" else 16) * BATCH

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x = random.normal(size=(ROWS, INPUTS)).astype("float32")
y = (x[:, :1] > 0).astype("float32")


class EndsAfter(keras.callbacks.Callback):
    """All workers come to the end of an epoch together, and see about the same time."""

    def __init__(self):
        super().__init__()
        self.until = None

    def on_epoch_end(self, epoch, logs=None):
        if self.until is None and all(map(os.path.exists, BEGINS)):
            self.until = time.monotonic() + SECONDS
        if self.until is not None and time.monotonic() > self.until:
            self.model.stop_training = True


class SleepyMonitor(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)


def slow_batches():
    while True:
        rows = random.integers(0, ROWS, BATCH)
        time.sleep(0.1)
        yield x[rows], y[rows]


class SlowRows(keras.utils.PyDataset):
    def __init__(self, seconds=0.1):
        super().__init__()
        self.seconds = seconds

    def __len__(self):
        return 16

    def __getitem__(self, number):
        time.sleep(self.seconds)
        return x[number * BATCH : (number + 1) * BATCH], y[number * BATCH : (number + 1) * BATCH]


class OtherLengths(keras.utils.PyDataset):
    """Every batch is of another length, as sentences are that nobody padded."""

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def __len__(self):
        return 16

    def __getitem__(self, number):
        length = 10 + (number * 7 + self.epoch * 16) % 400
        return random.normal(size=(32, length, 8)).astype("float32"), np.zeros((32, 1), "float32")

    def on_epoch_end(self):
        self.epoch += 1


if WRONG == "shapes":
    layers = [keras.Input((None, 8)), keras.layers.Conv1D(16, 3), keras.layers.GlobalAveragePooling1D()]
    data, labels, more = OtherLengths(), None, {}
elif WRONG == "generator":
    layers, data, labels, more = [keras.Input((INPUTS,))], slow_batches(), None, {"steps_per_epoch": 16}
elif WRONG == "disk":
    import shoal

    data = SlowRows(0.1 if shoal.rank() else 0.0)
    layers, labels, more = [keras.Input((INPUTS,))], None, {}
elif WRONG == "dataset":
    layers, data, labels, more = [keras.Input((INPUTS,))], SlowRows(), None, {}
else:
    layers, data, labels, more = [keras.Input((INPUTS,))], x, y, {"batch_size": BATCH}
if WRONG != "shapes":
    layers += [keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(WIDTH, "relu")]
    layers += [keras.layers.Dense(WIDTH, "relu")] * LARGE
model = keras.Sequential([*layers, keras.layers.Dense(1)])
if WRONG == "unequal":
    import shoal

    class Unequal(keras.Model):
        """One of the workers takes longer for every sample."""

        def train_step(self, batch):
            time.sleep(len(batch[0]) * (1e-4 if shoal.rank() else 3.4e-4))
            return super().train_step(batch)

    model = Unequal(model.inputs, model.outputs)
model.compile("adam", "mse")
callbacks = [EndsAfter(), *([SleepyMonitor()] if WRONG == "callback" else [])]
if WRONG == "checkpoints":  # one at the end of every fit, for which the script waits
    for _ in range(40):
        model.fit(x[: 2 * BATCH], y[: 2 * BATCH], batch_size=BATCH, verbose=0)
else:
    model.fit(data, labels, epochs=10_000, verbose=0, callbacks=callbacks, **more)
