"""Trains every kind of model for a few steps and writes the hashes of their weights: `same_bits.py OUT [sliced]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

import shoal
from shoal.collectives.tree import Node
from shoal.hook.served import unit_update
from shoal.strategies import partial_sums, slicing

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5),
}
UNEVEN, WHOLE = (models.SAMPLES, 20), (models.WHOLE_BATCHES, 0)  # samples to train on, and to validate on
CASES = [
    (models.wide, models.images, UNEVEN, "momentum"),
    (models.convolution, models.images, WHOLE, "adam"),
    (models.dropout_and_batchnorm, models.images, UNEVEN, "clipped"),
    (models.embedding_and_lstm, models.sentences, WHOLE, "adam"),
    (models.embedding_and_attention, models.sentences, WHOLE, "momentum"),
]


def float16_with_overflow() -> dict[str, Any]:
    """The first steps overflow and are skipped: an overflow in any piece is everybody's."""
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(11)
    model = models.dense()
    models.compile_for_classes(
        model, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**24)
    )
    model.fit(*models.images(models.WHOLE_BATCHES), batch_size=16, epochs=4, verbose=0)
    keras.config.set_dtype_policy("float32")
    skipped = 12 - int(model.optimizer.inner_optimizer.iterations)
    return {"weights": models.weights_hash(model), "skipped": skipped}


def train(
    make: Callable[[], keras.Model], data: Callable[[int], Any], samples: tuple[int, int], optimizer: str
) -> dict[str, Any]:
    keras.utils.set_random_seed(11)
    model = models.compile_for_classes(make(), OPTIMIZERS[optimizer](), metrics=["accuracy"])
    train_on, validate_on = samples
    x, y = data(train_on)
    held_out = (x[:validate_on], y[:validate_on]) if validate_on else None
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=held_out)
    told = {name: [float(value).hex() for value in values] for name, values in history.history.items()}
    return {"weights": models.weights_hash(model), "history": told}


def left_to_right() -> dict[str, Any]:
    """The negative control: pieces summed as they come, not along the tree."""
    tree = partial_sums.split
    partial_sums.split = lambda node: (Node(node.lo, node.hi - 1), Node(node.hi - 1, node.hi))
    try:
        return train(*CASES[0])
    finally:
        partial_sums.split = tree


class Noise(keras.layers.Layer):
    """Random also when it is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(4)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)


def noise_in_tests() -> dict[str, Any]:
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), Noise(), keras.layers.Dense(5)])
    models.compile_for_classes(model, "sgd")
    x, y = models.images(models.WHOLE_BATCHES)
    evaluated = [float(model.evaluate(x, y, batch_size=8, verbose=0)).hex() for _ in range(2)]
    return {"evaluated": evaluated, "weights": models.weights_hash(model)}


def loader_that_pads() -> dict[str, Any]:
    """Its collate function looks at the whole batch, so it must see the whole batch on every worker."""
    import torch

    rng = np.random.default_rng(2)
    samples = [(rng.normal(size=int(rng.integers(2, 9))).astype("float32"), i % 5) for i in range(40)]

    def pad(chosen: list[Any]) -> Any:
        longest = max(len(x) for x, _ in chosen)
        rows = [np.pad(x, (0, longest - len(x)))[:, None] for x, _ in chosen]
        return torch.tensor(np.stack(rows)), torch.tensor([y for _, y in chosen])

    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [keras.layers.Input((None, 1)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(5)]
    )
    models.compile_for_classes(model, "sgd")
    loader = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True, collate_fn=pad)
    model.fit(loader, verbose=0)
    return {"weights": models.weights_hash(model)}


def main(out: Path, sliced: bool) -> None:
    """`sliced`: each worker updates a slice, in units that are small enough for everybody to have some."""
    if sliced:
        slicing.UNIT, slicing.SIZES = 2048, (1024, 2048)
        unit_update.SIZES = slicing.SIZES
    with shoal.AllReduce(sliced=sliced).scope():
        train_all(out)


def train_all(out: Path) -> None:
    hashes: dict[str, Any] = {"float16_with_overflow": float16_with_overflow()}
    hashes["noise_in_tests"] = noise_in_tests()
    if keras.backend.backend() == "torch":
        hashes["loader_that_pads"] = loader_that_pads()
    for case in CASES:
        hashes[case[0].__name__] = train(*case)
    if shoal.size() == 1:
        hashes["left_to_right"] = left_to_right()
    out.mkdir(exist_ok=True)
    (out / f"{shoal.rank()}.json").write_text(json.dumps(hashes))


main(Path(sys.argv[1]), sys.argv[2:] == ["sliced"])
