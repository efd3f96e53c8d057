"""A small training in which one worker gets stuck, as the first argument says, in `stuck_here`."""

import os
import sys
import threading
import time

import keras
import numpy as np

import shoal

HOW, FOLDER = sys.argv[1], sys.argv[2]
x, y = np.zeros((4096, 8), "float32"), np.zeros((4096, 1), "float32")
culprit = shoal.rank() == int(HOW in ("loop", "lock", "before", "loader", "stop"))
lock = threading.Lock()


class Hangs(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20 and culprit and HOW in ("loop", "lock"):
            stuck_here()


def stuck_here():
    with open(os.path.join(FOLDER, "stuck"), "w") as file:
        file.write(str(time.time()))
    if HOW == "loop":
        while True:
            pass
    elif HOW == "lock":
        threading.Thread(target=holds, daemon=True).start()
        time.sleep(0.1)
        with lock:
            pass
    elif HOW == "save":
        fifo = os.path.join(FOLDER, "a file system that does not answer")
        os.mkfifo(fifo)
        os.close(os.open(fifo, os.O_WRONLY))  # nobody reads it
    else:
        threading.Event().wait()


def holds():
    with lock:
        threading.Event().wait()


def generator():
    for _ in range(20):
        yield x[:64], y[:64]
    stuck_here()


class Loader(keras.utils.PyDataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        if number >= 40 and culprit:
            stuck_here()
        return x[:64], y[:64]


class Saved(keras.layers.Dense):
    def save_own_variables(self, store):
        stuck_here()


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), Saved(1)])
model.compile("sgd", "mse")
if HOW == "before" and culprit:
    stuck_here()
data = {"generator": generator, "loader": Loader}.get(HOW, lambda: None)()
more = {"x": x, "y": y, "batch_size": 64} if data is None else {"x": data}
epochs = 1 if HOW == "save" else 100_000
model.fit(**more, steps_per_epoch=64 if HOW == "generator" else None, epochs=epochs, verbose=0, callbacks=[Hangs()])
if HOW == "save":
    model.save(os.path.join(FOLDER, "model.keras"))
