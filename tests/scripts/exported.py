"""Writes a checkpoint of a model and exports it with `shoal checkpoint export`: `exported.py FOLDER OUT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
from click.testing import CliRunner

from shoal import cli
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.publish import PublishedCheckpoint, publish
from shoal.checkpoint.writer import Writer, Written
from shoal.hook.backends.base import variables_of

folder = Path(sys.argv[1])


def save(step: int, model: Any, header: Any, change: Any = lambda arrays: None) -> Path:
    """A checkpoint of a model, as a run would write it."""
    variables = variables_of(model)
    kinds = {"trainable": variables.trainable, "state": variables.states}
    arrays = {
        f"{kind}/{i}/{v.path}": np.array(keras.ops.convert_to_numpy(v))
        for kind, vs in kinds.items()
        for i, v in enumerate(vs)
    }
    change(arrays)
    draft, writer = Draft(folder, "r1", step), Writer()
    writer.begin(draft, 0, arrays)
    written = writer.wait(60.0)
    writer.close()
    assert isinstance(written, Written), written
    published = publish(draft, [written.part], header, keep=100)
    assert isinstance(published, PublishedCheckpoint), published
    return published.path


def export(path: Path, out: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli.main, ["checkpoint", "export", str(path), str(out)])
    return result.exit_code, result.output


def config(model: Any) -> Any:
    return json.loads(json.dumps(keras.saving.serialize_keras_object(model)))


def rename_first(arrays: dict[str, Any]) -> None:
    arrays["trainable/99/x"] = arrays.pop(next(iter(arrays)))


def reshape_first(arrays: dict[str, Any]) -> None:
    name = next(iter(arrays))
    arrays[name] = arrays[name].reshape(-1)


def trained() -> Any:
    keras.utils.set_random_seed(3)
    model = models.compile_for_classes(models.dropout_and_batchnorm(), "adam")
    model.fit(*models.images(), batch_size=16, verbose=0)
    return model


class OwnLayer(keras.layers.Layer):  # type: ignore[misc]
    """Not registered with Keras: a file can't tell how to make one."""

    def call(self, x: Any) -> Any:
        return x


x, _ = models.images()
model = trained()
told: dict[str, Any] = {}

# The same outputs, moving statistics included.
code, told["good"] = export(save(1, model, {"model": config(model)}), folder / "good.keras")
again = keras.saving.load_model(folder / "good.keras")
told["same"] = code == 0 and bool(np.array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0)))
told["compiled"] = again.compiled

keras.config.set_dtype_policy("bfloat16")
half = models.dense()
keras.config.set_dtype_policy("float32")
code, _ = export(save(2, half, {"model": config(half)}), folder / "half.keras")
again = keras.saving.load_model(folder / "half.keras")
told["same bfloat16"] = code == 0 and all(
    np.array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))
    for a, b in zip(half.variables, again.variables, strict=True)
)

own = keras.Sequential([keras.layers.Input((4,)), OwnLayer(), keras.layers.Dense(2)])
told["no config"] = export(save(3, model, {"model": None}), folder / "bad.keras")
told["no header"] = export(save(4, model, None), folder / "bad.keras")
told["other count"] = export(save(5, model, {"model": config(model)}, rename_first), folder / "bad.keras")
told["other shape"] = export(save(6, model, {"model": config(model)}, reshape_first), folder / "bad.keras")
told["own layer"] = export(save(7, own, {"model": config(own)}), folder / "bad.keras")
told["no model"] = export(save(8, model, {"model": config(keras.layers.Dense(2))}), folder / "bad.keras")
told["other name"] = export(folder / "step-000000001", folder / "bad.h5")
told["no folder"] = export(folder / "step-000000099", folder / "bad.keras")
torn = save(9, model, {"model": config(model)})
(torn / "part-000.safetensors").write_bytes(b"")
told["torn"] = export(torn, folder / "bad.keras")
told["bad files"] = [path.name for path in folder.glob("bad*")]
Path(sys.argv[2]).write_text(json.dumps(told))
