"""`shoal checkpoint export`: a checkpoint becomes a Keras file, or it is said why not."""

from __future__ import annotations

import json
import re

import pytest

from .runs import Trainings, full, succeeded

EXPECTED = {
    "no config": (2, r"does not say how its model is built\. Rebuild the model in a script.*--resume"),
    "no header": (2, r"does not say how its model is built"),
    "other count": (2, r"has 6 tensors of the kind 'trainable', the model built from it has 6"),
    "other shape": (2, r"trainable/0/\S+ has the shape \(36,\), the model's \S+ has \(3, 3, 1, 4\)"),
    "own layer": (2, r"can't build the model from the checkpoint alone.*layers of your own.*--resume"),
    "no model": (2, r"describes a Dense, not a model"),
    "other name": (2, r"ends in \.keras"),
    "no folder": (1, r"step-000000099 is not a whole checkpoint: there is no such folder"),
    "torn": (1, r"step-000000009 is not a whole checkpoint: part-000\.safetensors has 0 bytes.*shoal checkpoint list"),
}


@pytest.mark.parametrize("backend", ["jax", full("tensorflow"), "torch"])
def test_an_exported_model_predicts_as_the_trained_one_and_what_can_not_be_exported_is_named(
    trainings: Trainings, backend: str
) -> None:
    folder, out = trainings.folder / f"exports-{backend}", trainings.folder / f"{backend}.json"
    folder.mkdir()
    succeeded(trainings.plain(backend, "exported.py", folder, out))
    told = json.loads(out.read_text())
    assert "the model at step 1" in told["good"]
    assert told["same"]
    assert told["same bfloat16"]
    assert not told["compiled"], "its optimizer would not be the trained one"
    for name, (code, pattern) in EXPECTED.items():
        assert told[name][0] == code, told[name]
        assert re.search(pattern, told[name][1], re.DOTALL), told[name]
    assert told["bad files"] == []
