"""The optimizer's state of shards, written by the names of the whole and read back: `optimizer_parts.py OUT.json`.

The outside witness is the model's own optimizer, with numbers in every variable, as all-reduce would write it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, optimizers

from shoal.checkpoint import manifest
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.pieces import join
from shoal.checkpoint.publish import PublishedCheckpoint, publish
from shoal.checkpoint.writer import Writer, Written
from shoal.hook.backends.base import variables_of
from shoal.hook.served.shard_state import ShardState, parameters_of
from shoal.hook.served.whole_optimizer import (
    WholeOptimizer,
    known_to_workers,
    number_of_loss_scale,
    rates_of,
    read_into,
    to_write,
)
from shoal.store.decisions.shards import into_shards

OPTIMIZERS = {
    "sgd": lambda name: optimizers.SGD(0.1, name=name),
    "momentum": lambda name: optimizers.SGD(0.1, momentum=0.9, name=name),
    "adam": lambda name: optimizers.Adam(name=name),
    "amsgrad": lambda name: optimizers.Adam(amsgrad=True, name=name),
    "schedule": lambda name: optimizers.AdamW(optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), name=name),
    "nadam": lambda name: optimizers.Nadam(name=name),
    "rmsprop": lambda name: optimizers.RMSprop(centered=True, momentum=0.5, name=name),
    "ftrl": lambda name: optimizers.Ftrl(name=name),
    "lamb": lambda name: optimizers.Lamb(name=name),
    "muon": lambda name: optimizers.Muon(name=name),
    "adafactor": lambda name: optimizers.Adafactor(name=name),
    "together": lambda name: optimizers.Adam(global_clipnorm=1.0, name=name),
    "averages": lambda name: optimizers.Adam(use_ema=True, gradient_accumulation_steps=2, name=name),
    "scaled": lambda name: optimizers.LossScaleOptimizer(optimizers.Adam(use_ema=True, name="inner"), name=name),
    "scaled schedule": lambda name: optimizers.LossScaleOptimizer(
        optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), momentum=0.9, name="inner"), name=name
    ),
    "scaled together": lambda name: optimizers.LossScaleOptimizer(
        optimizers.Adam(global_clipnorm=1.0, name="inner"), name=name
    ),
}


def make_model() -> Any:
    return keras.Sequential([layers.Input((300,)), layers.Dense(131), layers.Dense(7, use_bias=False)])


def filled(optimizer: Any, trainable: list[Any]) -> None:
    optimizer.build(trainable)
    for place, variable in enumerate(optimizer.variables):
        numbers = np.arange(1, 1 + int(np.prod(variable.shape))) * (place + 1) % 251
        variable.assign(numbers.reshape(variable.shape).astype("float32"))


def numbers(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))


def plain(path: str) -> str:
    """Without the number of a variable that has no name."""
    return path.rstrip("_0123456789")


def shards(model: Any, optimizer: Any, idle: int) -> list[ShardState]:
    """Of a model whose last variables, so many of them, have no gradients."""
    trained = model.trainable_variables[: len(model.trainable_variables) - idle]
    parameters = parameters_of(trained, optimizer)
    return [ShardState(shard, parameters, trained, optimizer) for shard in into_shards(parameters, 3)]


def check(kind: str, folder: Path, idle: int = 0) -> dict[str, Any]:
    model = make_model()
    trainable = model.trainable_variables
    built = OPTIMIZERS[kind]("own")
    filled(built, trainable)
    states = shards(model, built, idle)
    fresh = OPTIMIZERS[kind]("own")
    whole = WholeOptimizer(fresh, trainable)
    parts = [to_write(whole, state, is_first=not i) for i, state in enumerate(states)]
    parts[0] |= whole.never_updated(fresh, trainable[: len(trainable) - idle])
    parts.append(
        {
            f"optimizer/{i}/{variable.path}": numbers(variable)
            for i, variable in enumerate(built.variables)
            if any(variable is rate for rate in rates_of(built))
        }
    )
    arrays = join({name: np.array(array) for part in parts for name, array in part.items()})
    arrays = {plain(name): array for name, array in arrays.items()}
    expected = {plain(f"optimizer/{i}/{v.path}"): numbers(v) for i, v in enumerate(built.variables)}
    others = {id(v) for v in trainable[len(trainable) - idle :]}
    unlike = [
        name
        for name, array in expected.items()
        if name not in arrays or array.shape != arrays[name].shape or not (arrays[name] == array).all()
    ]
    listed = whole.variables()
    step = Draft(folder, kind.replace(" ", "-"), len(list(folder.iterdir())))
    written = []
    for place, part in enumerate(parts):
        writer = Writer()
        writer.begin(step, place, part)
        outcome = writer.wait(30)
        assert isinstance(outcome, Written), outcome
        written.append(outcome.part)
        writer.close()
    published = publish(step, written, {}, keep=99)
    assert isinstance(published, PublishedCheckpoint), published
    again = shards(model, fresh, idle)
    for state, other in zip(again, states, strict=True):
        read_into(whole, state, published.path)
        for mine, theirs in zip(state.optimizer.variables, other.optimizer.variables, strict=True):
            if not (numbers(mine) == numbers(theirs)).all():
                unlike.append(f"read: {mine.path}")
    whole_path = [(v.path, tuple(v.shape)) for v in built.variables]
    said = listed is None or all(
        plain(path) == plain(other) and shape in (None, actual)
        for (path, shape), (other, actual) in zip(listed, whole_path, strict=True)
    )
    unbuilt = OPTIMIZERS[kind]("own")
    model.compile(unbuilt)
    known = {number: variable.path for number, variable in known_to_workers(variables_of(model)).items()}
    scale = number_of_loss_scale(unbuilt)
    knows = all(path == built.variables[number].path for number, path in known.items())
    return {
        "knows": knows and (scale is None or built.variables[scale] is built.dynamic_scale),
        "scaled": scale is not None and scale == number_of_loss_scale(built),
        "unlike": unlike,
        "more": sorted(arrays.keys() - expected.keys()),
        "shards": len(states),
        "pieces": sum("[" in name for part in parts for name in part),
        "says": said,
        "idle": len(others),
    }


folder = Path(sys.argv[1]).with_suffix("")
folder.mkdir()
found = {kind: check(kind, folder) for kind in OPTIMIZERS}
found["idle"] = check("adam", folder, idle=1)
assert manifest.FORMAT == 1
Path(sys.argv[1]).write_text(json.dumps(found))
