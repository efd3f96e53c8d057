"""Gradients of models that are cut into stages, against one step of plain Keras: `stages.py OUT`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from shoal.hook.backends import registry
from shoal.hook.calls.building import build
from shoal.hook.stages.graph import take_apart
from shoal.hook.stages.stage_model import StageModel
from shoal.session.this_process import current
from shoal.strategies.stages import choose_cuts, cut, possible_cuts

ROWS = 8
rng = np.random.default_rng(0)
Made = tuple[keras.Model, Any, Any]


def images(*shape: int) -> Any:
    return rng.normal(size=(ROWS, *shape)).astype("float32")


def classes(*shape: int) -> Any:
    return rng.integers(0, 5, (ROWS, *shape))


def skips() -> Made:
    image = layers.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")(image)
    x = skipped = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Add()([layers.Conv2D(4, 3, padding="same")(x), skipped])
    x = layers.Add()([layers.Conv2D(4, 3, padding="same")(x), skipped])
    x = layers.Dense(5, kernel_regularizer="l2")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, x), images(8, 8, 3), classes()


class AllWords(layers.Layer):
    """The number of every word, for each sample."""

    def call(self, x: Any) -> Any:
        return keras.ops.tile(keras.ops.arange(5, dtype="int32")[None], (keras.ops.shape(x)[0], 1))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor((x.shape[0], 5), "int32")


def tied_transformer() -> Made:
    tokens = layers.Input((6,), dtype="int32")
    table = layers.Embedding(5, 8)
    x = table(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.Dense(16, activation="gelu")(x))]))
    return (
        keras.Model(tokens, layers.Dot(axes=(2, 2))([x, table(AllWords()(x))])),
        classes(6).astype("int32"),
        classes(6),
    )


def several_outputs() -> Made:
    a, b = layers.Input((4,), name="a"), layers.Input((3,), name="b")
    x = layers.Dense(8, activation="tanh", activity_regularizer="l2")(a)
    early = layers.Dense(2, name="early")(x)
    x = layers.Dense(8, activation="tanh")(layers.Concatenate()([x, b]))
    late = layers.Dense(5, name="late")(layers.Dense(8, activation="tanh")(x))
    model = keras.Model({"a": a, "b": b}, {"early": early, "late": late})
    return model, {"a": images(4), "b": images(3)}, {"early": images(2), "late": classes()}


def lstm() -> Made:
    listed = [layers.Embedding(20, 8, mask_zero=True), layers.LSTM(8), layers.Dense(8, "tanh"), layers.Dense(5)]
    return keras.Sequential([layers.Input((6,)), *listed]), rng.integers(0, 20, (ROWS, 6)), classes()


def unet() -> Made:
    image = layers.Input((8, 8, 1))

    def conv(x: Any, filters: int) -> Any:
        return layers.Conv2D(filters, 3, padding="same", activation="relu")(x)

    outer = conv(image, 4)
    inner = conv(layers.MaxPooling2D()(outer), 8)
    x = layers.Conv2DTranspose(8, 2, strides=2)(conv(layers.MaxPooling2D()(inner), 8))
    x = layers.Conv2DTranspose(4, 2, strides=2)(conv(layers.Concatenate()([x, inner]), 8))
    x = layers.Conv2D(5, 1)(conv(layers.Concatenate()([x, outer]), 4))
    return keras.Model(image, x), images(8, 8, 1), classes(8, 8)


def mobilenet() -> Made:
    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5, classifier_activation=None)
    return model, images(32, 32, 3), classes()


MODELS: list[Callable[[], Made]] = [skips, tied_transformer, several_outputs, lstm, unet, mobilenet]


def compiled(make: Callable[[], Made]) -> Made:
    keras.utils.set_random_seed(1)
    model, x, y = make()
    of_classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.SGD(1.0), {"early": "mse", "late": of_classes} if isinstance(y, dict) else of_classes
    )
    return model, x, y


def in_stages(model: Any, x: Any, y: Any, count: int) -> list[Any]:
    """The changes of all variables that a step of SGD(1.0) would make, from gradients that went through stages."""
    batch = (x, y)
    build(model, batch)
    engine = registry.current().engine(model, current())
    engine.begin(0)
    whole = engine.trace(batch).only
    engine.put_seeds_back()
    apart = take_apart(model)
    stages = cut(apart.graph, choose_cuts(apart.graph, count))
    engines = [registry.current().stage(StageModel(model, apart, stages, k), engine, whole) for k in range(count)]
    sent: dict[int, Any] = {}
    so_far = np.zeros((), np.float32)
    for stage, one in zip(stages, engines, strict=True):
        given = one.forward(0, batch, 1.0, [*(sent[tensor] for tensor, _ in stage.receives), so_far])
        sent |= zip((tensor for tensor, _ in stage.sends), given, strict=False)
        so_far = given[-1] if given else so_far
    gradients: dict[int, Any] = {}
    changes = {id(variable): np.zeros(variable.shape, "float32") for variable in model.variables}
    of_losses = None
    for stage, one in reversed(list(zip(stages, engines, strict=True))):
        wanted = [gradients[tensor] for tensor, _ in stage.sends if one.is_float(tensor)]
        back, arrays = one.backward(0, [] if one.is_last else [*wanted, of_losses])
        floats = [tensor for tensor, _ in stage.receives if one.is_float(tensor)]
        for tensor, array in zip(floats, back, strict=False):
            gradients[tensor] = gradients[tensor] + array if tensor in gradients else array
        of_losses = back[-1]
        for variable, array in zip(one.trainable, arrays, strict=False):
            changes[id(variable)] -= array.reshape(variable.shape)
        for variable, array in zip(one._changed, arrays[len(one.trainable) :], strict=True):
            changes[id(variable)] = array.reshape(variable.shape) - keras.ops.convert_to_numpy(variable)
    return [changes[id(variable)] for variable in model.variables]


def main(out: Path) -> None:
    told: dict[str, Any] = {}
    for make in MODELS:
        model, x, y = compiled(make)
        before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
        model.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False)  # plain Keras: one worker, one piece
        after = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
        expected = [new - old for new, old in zip(after, before, strict=True)]
        for count in (2, 4):
            again, _, _ = compiled(make)
            if len(possible_cuts(take_apart(again).graph)) < count - 1:
                continue
            found = in_stages(again, x, y, count)
            largest = max(float(np.abs(change).max()) for change in expected)
            off = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            told[f"{make.__name__} {count}"] = off / largest
    out.mkdir(exist_ok=True)
    (out / "0.json").write_text(json.dumps(told))


main(Path(sys.argv[1]))
