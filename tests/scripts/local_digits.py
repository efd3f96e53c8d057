"""Digits with plain Keras, with LocalSGD, and with two ways to do that wrong; and what LocalSGD refuses.

local_digits.py OUT.json    without `shoal run`: one worker hosts all replicas
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from sklearn.datasets import load_digits

import shoal
from shoal.training.outer import OuterOptimizer
from shoal.training.replica_states import ReplicaStates

digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
x, y = (digits.data / 16.0).astype("float32")[order], digits.target[order]
SEEN = 1408  # 22 batches of 64


def network() -> keras.Model:
    inputs = keras.layers.Input((64,))
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Dense(64, "relu")(inputs)))


def loss_of(strategy: Any = None) -> float:
    """On unseen digits, after five epochs."""
    keras.utils.set_random_seed(3)
    model = network()
    if strategy is None:
        models.compile_for_classes(model, keras.optimizers.Adam(0.003))
    else:
        with strategy.scope():
            models.compile_for_classes(model, keras.optimizers.Adam(0.003))
    model.fit(x[:SEEN], y[:SEEN], batch_size=64, epochs=5, verbose=0)
    return float(model.evaluate(x[SEEN:], y[SEEN:], verbose=0))


def without(owner: Any, name: str, put: Any) -> float:
    """With a part of it taken out."""
    own = getattr(owner, name)
    setattr(owner, name, put)
    try:
        return loss_of(local())
    finally:
        setattr(owner, name, own)


def local() -> Any:
    return shoal.LocalSGD(every=11, replicas=2)


def forget(self: ReplicaStates, replica: int) -> Any:
    return [np.zeros_like(value) for value in self.read()]


def said(act: Callable[[], Any]) -> str:
    try:
        act()
    except (shoal.UsageError, shoal.CannotDistribute) as error:
        return str(error)
    return "nothing"


def fit(outer: Any = None, optimizer: Any = None, samples: int = 64) -> None:
    with shoal.LocalSGD(every=2, replicas=4, outer=outer).scope():
        model = models.compile_for_classes(network(), optimizer or keras.optimizers.SGD(0.1))
    model.fit(x[:samples], y[:samples], batch_size=16, verbose=0)


def streaming(**settings: Any) -> None:
    with shoal.LocalSGD(replicas=4, **settings).scope():
        model = models.compile_for_classes(network(), keras.optimizers.SGD(0.1))
    model.fit(x[:64], y[:64], batch_size=16, verbose=0)


def shared() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    fit(optimizer, optimizer)


def of_two_models() -> None:
    outer = keras.optimizers.SGD(0.1)
    fit(outer)
    fit(outer)


def on_batch() -> None:
    with local().scope():
        model = models.compile_for_classes(network(), keras.optimizers.SGD(0.1))
    model.train_on_batch(x[:16], y[:16])


REFUSED: dict[str, Callable[[], Any]] = {
    "shared": shared,
    "of_two_models": of_two_models,
    "no_optimizer": lambda: fit("adam"),
    "scaled": lambda: fit(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))),
    "averages": lambda: fit(optimizer=keras.optimizers.SGD(0.1, use_ema=True)),
    "small_batches": lambda: fit(samples=3),
    "on_batch": on_batch,
    "uneven_fragments": lambda: streaming(every=6, streaming=4),
    "many_fragments": lambda: streaming(every=5, streaming=5),
}

if __name__ == "__main__":
    from shoal.hook.local.keras_outer import KerasOuter

    outer: type[OuterOptimizer] = KerasOuter
    told = {
        "plain": loss_of(),
        "local": loss_of(local()),
        "streaming": loss_of(shoal.LocalSGD(every=8, replicas=2, streaming=4)),
        "without the outer optimizer": without(outer, "apply", lambda self, moves: None),
        "without what replicas keep": without(ReplicaStates, "of", forget),
        "refused": {name: said(act) for name, act in REFUSED.items()},
    }
    Path(sys.argv[1]).write_text(json.dumps(told))
