"""Trains models with LocalSGD and writes the hashes of their weights, of the chief's optimizer, and their losses.

local_sgd.py OUT [CASE ...]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np

import shoal

REPLICAS = 4


def dropout_and_batchnorm() -> dict[str, Any]:
    """Two fits. The last batch of an epoch has fewer samples than there are replicas; it is a round by itself."""
    with shoal.LocalSGD(every=3, replicas=REPLICAS).scope():
        model = models.compile_for_classes(
            models.dropout_and_batchnorm(), keras.optimizers.Adam(0.01), metrics=["accuracy"]
        )
    x, y = models.images()
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    first = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), verbose=0, callbacks=[rate])
    second = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    return outcome(model, first.history | {f"second {name}": values for name, values in second.history.items()})


def streaming(compress: Any = None, outer: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Two fits of epochs that end in the middle of a stretch."""
    with shoal.LocalSGD(every=6, replicas=REPLICAS, compress=compress, outer=outer(), streaming=3).scope():
        model = models.compile_for_classes(
            models.dropout_and_batchnorm(), keras.optimizers.Adam(0.01), metrics=["accuracy"]
        )
    x, y = models.images(16 * 10 + 2)
    first = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), verbose=0)
    second = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    return outcome(model, first.history | {f"second {name}": values for name, values in second.history.items()})


def wide_with(compress: Any, outer: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    with shoal.LocalSGD(every=2, replicas=REPLICAS, compress=compress, outer=outer()).scope():
        model = models.compile_for_classes(models.wide(), keras.optimizers.SGD(0.05, momentum=0.9))
    history = model.fit(*models.images(models.WHOLE_BATCHES), batch_size=16, epochs=3, verbose=0)
    return outcome(model, history.history)


def float16_with_overflow() -> dict[str, Any]:
    """The first steps of every replica overflow and are skipped, each by its own scale."""
    keras.config.set_dtype_policy("mixed_float16")
    with shoal.LocalSGD(every=3, replicas=REPLICAS).scope():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**24)
        model = models.compile_for_classes(models.wide(), optimizer)
    history = model.fit(*models.images(models.WHOLE_BATCHES), batch_size=16, epochs=4, verbose=0)
    keras.config.set_dtype_policy("float32")
    assert int(optimizer.inner_optimizer.iterations) < 12  # some were
    return outcome(model, history.history)


def generator(streaming: int | None = None) -> dict[str, Any]:
    """Of unknown length, and the last batch is smaller."""

    def batches() -> Iterator[Any]:
        x, y = models.images(42)
        for _ in range(2):
            for start in range(0, 42, 16):
                yield x[start : start + 16], y[start : start + 16]

    with shoal.LocalSGD(every=2, replicas=REPLICAS, streaming=streaming).scope():
        model = models.compile_for_classes(models.dense(), keras.optimizers.Adam(0.01))
    history = model.fit(batches(), verbose=0)
    return outcome(model, history.history)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "dropout_and_batchnorm": dropout_and_batchnorm,
    "plain": lambda: wide_with(None),
    "outer_adam": lambda: wide_with(None, lambda: keras.optimizers.Adam(0.01)),
    "outer_average": lambda: wide_with(None, lambda: keras.optimizers.SGD(1.0, use_ema=True)),
    "bf16": lambda: wide_with("bf16"),
    "int8": lambda: wide_with("int8"),
    "topk": lambda: wide_with(shoal.TopK(0.05)),
    "lowrank": lambda: wide_with(shoal.LowRank(rank=2)),
    "float16_with_overflow": float16_with_overflow,
    "generator": generator,
    "streaming": streaming,
    "streaming_topk": lambda: streaming(shoal.TopK(0.05)),
    "streaming_int8_adam": lambda: streaming("int8", lambda: keras.optimizers.Adam(0.01)),
    "streaming_generator": lambda: generator(2),
}


def outcome(model: keras.Model, history: dict[str, list[float]]) -> dict[str, Any]:
    told = {
        "weights": hashed(model.variables),
        "losses": {name: [float(value).hex() for value in values] for name, values in history.items()},
        "loss": history["loss"][-1],
    }
    if shoal.is_chief():  # whose replica 0 is; the others' optimizers have other replicas' states
        told["optimizer"] = hashed(model.optimizer.variables)
    return told


def hashed(variables: list[Any]) -> str:
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    return digest.hexdigest()


def main() -> None:
    out, *named = sys.argv[1:]
    told = {}
    for name, case in CASES.items():
        if not named or name in named:
            keras.utils.set_random_seed(5)
            told[name] = case()
    Path(out).mkdir(exist_ok=True)
    Path(out, f"{shoal.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
