"""What calls of attention cost in a pipeline, at two lengths: `attention.py OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
from keras import layers

from shoal.hook.stages.graph import take_apart

LAYERS = {
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(4, 8)(x, x),
    "GroupQueryAttention": lambda x: layers.GroupQueryAttention(8, 4, 2)(x, x),
    "Attention": lambda x: layers.Attention()([x, x]),
    "AdditiveAttention": lambda x: layers.AdditiveAttention()([x, x]),
    "Dense": lambda x: layers.Dense(32)(x),
}


def cost(name: str, length: int) -> float:
    inputs = keras.Input((length, 32))
    return sum(call.cost for call in take_apart(keras.Model(inputs, LAYERS[name](inputs))).graph.calls)


out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
(out / "0.json").write_text(json.dumps({name: [cost(name, 1024), cost(name, 2048)] for name in LAYERS}))
