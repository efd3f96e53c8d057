"""A checkpoint's tensors as a Keras file: layers and weights, for use without Shoal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from shoal.checkpoint.tensor_names import tables_in
from shoal.errors import UsageError
from shoal.hook import keras_private
from shoal.hook.backends.base import variables_of
from shoal.hook.tables import saved_rows
from shoal.hook.tables.sharded_embedding import ShardedEmbedding

Array = np.ndarray[Any, Any]

RESUME = "Rebuild the model in a script, resume from the checkpoint with --resume, and call model.save() there."


def export(header: Any, arrays: Mapping[str, Array], out: Path) -> None:
    """Builds the model that the header describes, gives it the tensors and saves it, not compiled.

    Tensors are named `trainable/<index>/<path>` and `state/<index>/<path>`, by their index in the model's lists.
    """
    if out.suffix != ".keras":
        raise UsageError(f"can't export to {out}: Keras wants a name that ends in .keras")
    model = _model(header.get("model") if isinstance(header, dict) else None)
    variables = variables_of(model)
    tables = _fill_tables(model, arrays)
    _assign("trainable", {i: v for i, v in enumerate(variables.trainable) if id(v) not in tables}, arrays)
    _assign("state", dict(enumerate(variables.states)), arrays)
    model.save(out)


def _model(config: Any) -> Any:
    if not isinstance(config, dict):
        raise UsageError(f"this checkpoint does not say how its model is built. {RESUME}")
    # The optimizer's state is not exported, so a compiled model would only look as if its training could go on.
    without_optimizer = {key: value for key, value in config.items() if key != "compile_config"}
    try:
        model = keras.saving.deserialize_keras_object(without_optimizer)
    except Exception as error:  # a model's own code runs here
        raise UsageError(
            f"can't build the model from the checkpoint alone: {error}\nIt may have layers of your own. {RESUME}"
        ) from error
    if not isinstance(model, keras.Model):
        raise UsageError(f"the checkpoint describes a {type(model).__name__}, not a model. {RESUME}")
    return model


def _fill_tables(model: Any, arrays: Mapping[str, Array]) -> set[int]:
    """Gives tables that were on servers their rows. Returns the ids of their variables."""
    found = tables_in(arrays)
    layers = [layer for layer in keras_private.layers_in(model) if isinstance(layer, ShardedEmbedding)] if found else []
    shapes = [(layer.input_dim, layer.output_dim) for layer in layers]
    if shapes != [(found[number].rows, found[number].width) for number in sorted(found)]:
        raise UsageError(f"the checkpoint has rows of other tables than the model built from it. {RESUME}")
    for number, layer in enumerate(layers):
        layer.take_rows(*saved_rows.rows_of(arrays, number))
    return {id(layer.embeddings) for layer in layers}


def _assign(kind: str, variables: Mapping[int, Any], arrays: Mapping[str, Array]) -> None:
    """By index, not by path: automatic names count up with every model that a script makes."""
    found: dict[int, tuple[str, Array]] = {}
    for name, array in arrays.items():
        first, _, rest = name.partition("/")
        number = rest.partition("/")[0]
        if first == kind and number.isdecimal():
            found[int(number)] = (name, array)
    if found.keys() != variables.keys():
        raise UsageError(
            f"the checkpoint has {len(found)} tensors of the kind {kind!r}, the model built from it has "
            f"{len(variables)}. {RESUME}"
        )
    for index, variable in variables.items():
        name, array = found[index]
        if tuple(variable.shape) != array.shape:
            raise UsageError(
                f"the checkpoint's {name} has the shape {array.shape}, the model's {variable.path} has "
                f"{tuple(variable.shape)}. {RESUME}"
            )
        # Not every backend takes numpy's bfloat16; float32 holds each of its values.
        variable.assign(array.astype(np.float32) if array.dtype.name == "bfloat16" else array)
