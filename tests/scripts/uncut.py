"""What can't be cut into stages, and what the error says: `uncut.py OUT.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import layers

import shoal
from shoal.errors import UsageError
from shoal.hook.stages.graph import refuse_unless_stageable, take_apart
from shoal.strategies.stages import choose_cuts


class Free(keras.Model):
    """Its `call` is not a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class OwnStep(keras.Model):
    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


class OwnLoss(keras.Model):
    def compute_loss(self, **kwargs: Any) -> Any:
        return super().compute_loss(**kwargs)


class OwnOptimizer(keras.optimizers.SGD):
    pass


def graph(kind: type[keras.Model] = keras.Model, optimizer: Any = "sgd", loss: str = "mse") -> keras.Model:
    x = layers.Input((4,))
    model = kind(x, layers.Dense(2)(layers.Dense(3)(x)))
    model.compile(optimizer, loss)
    return model


def check(model: keras.Model, stages: int = 2, callbacks: Any = (), lean: bool = False) -> None:
    refuse_unless_stageable(model, callbacks, lean)
    choose_cuts(take_apart(model).graph, stages)


def masked() -> None:
    model = keras.Sequential([layers.Input((6,)), layers.Embedding(9, 4, mask_zero=True), layers.LSTM(4)])
    model.compile("sgd", "mse")
    check(model)


def free() -> None:
    model = Free()
    model.compile("sgd", "mse")
    check(model)


CASES: dict[str, Callable[[], None]] = {
    "a_call_of_its_own": free,
    "a_train_step_of_its_own": lambda: check(graph(OwnStep)),
    "a_compute_loss_of_its_own": lambda: check(graph(OwnLoss)),
    "an_optimizer_of_its_own": lambda: check(graph(optimizer=OwnOptimizer())),
    "global_clipnorm": lambda: check(graph(optimizer=keras.optimizers.SGD(global_clipnorm=1.0))),
    "a_scaled_loss": lambda: check(graph(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))),
    "accumulated_gradients": lambda: check(graph(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))),
    "swapped_averages": lambda: check(graph(), callbacks=[keras.callbacks.SwapEMAWeights()]),
    "saved_in_the_middle": lambda: check(graph(), callbacks=[keras.callbacks.ModelCheckpoint("x.keras", save_freq=3)]),
    "a_lean_backup": lambda: check(graph(), callbacks=[keras.callbacks.BackupAndRestore("x")], lean=True),
    "more_stages_than_layers": lambda: check(graph(), stages=3),
    "a_mask_at_every_cut": masked,
    "one_stage": lambda: shoal.Pipeline(stages=1),
    "no_pieces": lambda: shoal.Pipeline(pieces=0),
}


def said(case: Callable[[], None]) -> str:
    try:
        case()
    except UsageError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


check(graph())
Path(sys.argv[1]).write_text(json.dumps({name: said(case) for name, case in CASES.items()}))
