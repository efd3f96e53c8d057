"""Trains one small model on one device and on meshes of four, in one process: `mesh.py OUT.json [SHAPE ...]`.

Also a mesh that does not match the devices, and a user's own layouts.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

import shoal

L = keras.layers
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.integers(0, 64, (32, 8)), RANDOM.integers(0, 64, (32, 8))


def make() -> Any:
    """A block of a transformer, with a table that also makes the logits."""
    tokens = keras.Input((8,), dtype="int32")
    table = L.ReversibleEmbedding(64, 32)
    h = table(tokens)
    normal = L.LayerNormalization()(h)
    h = L.Add()([h, L.MultiHeadAttention(4, 8, name="attention")(normal, normal)])
    inner = L.Dropout(0.0)(L.Dense(128, activation="relu", name="up")(L.LayerNormalization()(h)))
    h = L.Add()([h, L.Dense(32, name="down")(inner)])
    model = keras.Model(tokens, table(h, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def flat(model: Any) -> Any:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def held(variables: Any) -> list[int]:
    """Bytes on each device, as they are."""
    found: dict[str, int] = {}
    for variable in variables:
        for shard in variable.value.addressable_shards:
            found[str(shard.device)] = found.get(str(shard.device), 0) + shard.data.nbytes
    return sorted(found.values())


def trained(model: Any) -> dict[str, Any]:
    # Each fit of a process has random numbers of its own: here none is drawn.
    history = model.fit(X, Y, batch_size=16, epochs=2, verbose=0, shuffle=False).history
    weights = flat(model)
    return {
        "hash": hashlib.sha256(weights.tobytes()).hexdigest(),
        "weights": weights.tolist(),
        "history": history,
        "evaluated": model.evaluate(X, Y, batch_size=16, verbose=0),
        "predicted": model.predict(X[:7], verbose=0).sum(dtype=np.float64),  # rows that do not divide
        "held": held(model.trainable_variables),
        "optimizer": held(model.optimizer.variables),
        "split": {v.path: str(v.value.sharding.spec) for v in model.trainable_variables if spread(v)},
    }


def spread(variable: Any) -> bool:
    return not variable.value.is_fully_replicated


def on(shape: str) -> dict[str, Any]:
    keras.utils.set_random_seed(3)
    mesh = None if shape == "one device" else shoal.Mesh.parse(shape)
    with shoal.AllReduce(pieces=2, mesh=mesh).scope():
        model = make()
    found = trained(model)
    if shape == "one device":
        return found
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "model.keras"))
        loaded = keras.models.load_model(Path(folder, "model.keras"))
        found["saved"] = bool(np.array_equal(flat(loaded), flat(model)))
    return found


def refused(shape: str) -> str:
    try:
        on(shape)
    except shoal.ShoalError as error:
        return str(error)
    return ""


def with_users_layouts(pattern: str) -> Any:
    """As the documentation of Keras has it."""
    mesh = keras.distribution.DeviceMesh((2, 2), ("rows", "features"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[pattern] = (None, "features")
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="rows"))
    try:
        keras.utils.set_random_seed(3)
        with shoal.AllReduce(pieces=2).scope():
            return trained(make())
    except shoal.ShoalError as error:
        return str(error)
    finally:
        keras.distribution.set_distribution(None)


warnings.simplefilter("error", UserWarning)
out, shapes = Path(sys.argv[1]), sys.argv[2:]
found: dict[str, Any] = {shape: on(shape) for shape in ["one device", *shapes]}
found["mismatch"] = refused("batch=3")
found["users, wrong"] = with_users_layouts("up/kernels")
found["users"] = with_users_layouts(".*up/kernel") if len(shapes) > 3 else None
out.write_text(json.dumps(found))
