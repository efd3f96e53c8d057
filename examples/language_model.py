"""A small transformer language model, in two stages, under a memory limit.

    shoal run -n 2 --backend torch examples/language_model.py --memory 500            each worker has 500 MB: enough
    KERAS_BACKEND=torch python examples/language_model.py --stages 1 --memory 500     one process has: it is not

The model has 25 million weights, 101 MB. On one machine weights, gradients, Adam's two averages and what PyTorch takes
for the update are seven times as much. In two stages, a worker builds the model, lets go of the other stage's weights,
and has gradients, averages and update of its own stage only. The text is the source of Python's own modules, byte by
byte.
"""

import argparse
import contextlib
import inspect
import resource
from pathlib import Path

import keras
import numpy as np
from keras import layers

import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--memory", type=int, help="MB that a process may take for training, over what it has at first")
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--blocks", type=int, default=8)
parser.add_argument("--steps", type=int, default=20)
given = parser.parse_args()
LENGTH, BATCH = 32, 8


def text() -> np.ndarray:
    sources = (inspect, argparse, resource, np.polynomial.polynomial)
    read = b"".join(Path(module.__file__).read_bytes() for module in sources if module.__file__.endswith(".py"))
    return np.frombuffer(read, np.uint8)


def block(x: keras.KerasTensor) -> keras.KerasTensor:
    normal = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(8, given.width // 8)(normal, normal, use_causal_mask=True)
    hidden = layers.Dense(4 * given.width, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(given.width)(hidden)


def language_model() -> keras.Model:
    written = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(256, given.width)(written)
    for _ in range(given.blocks):
        x = block(x)
    return keras.Model(written, layers.Dense(256)(layers.LayerNormalization()(x)))


def limit(megabytes: int) -> None:
    """What this process may take from now on. The kernel refuses more, and the backend says so."""
    status = Path("/proc/self/status").read_text()
    now = int(status.split("VmData:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (now + megabytes * 2**20, resource.RLIM_INFINITY))


keras.utils.set_random_seed(1)
keras.Sequential([layers.Input((1,)), layers.Dense(1)])  # what a backend takes for itself is not counted
if given.memory is not None:
    limit(given.memory)
# lean: no copy of the neighbour's stage, and no whole optimizer when fit ends.
pipeline = shoal.Pipeline(given.stages, pieces=2, lean=True).scope() if given.stages > 1 else contextlib.nullcontext()
with pipeline:
    model = language_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-4), loss, metrics=["accuracy"])

bytes_of_text = text()
starts = np.random.default_rng(1).integers(0, len(bytes_of_text) - LENGTH - 1, BATCH * given.steps)
x = np.stack([bytes_of_text[start : start + LENGTH] for start in starts]).astype("int32")
y = np.stack([bytes_of_text[start + 1 : start + LENGTH + 1] for start in starts]).astype("int32")
history = model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
print(f"{model.count_params():,} weights; after {given.steps} steps the loss is {history.history['loss'][-1]:.3f}")
