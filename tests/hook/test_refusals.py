"""What can't be distributed is refused before anything is trained, with a message that says what to do."""

from __future__ import annotations

import json
import re

import pytest

from .runs import BACKENDS, Trainings, succeeded

EXPECTED = {
    "a_generator_without_a_batch": r"CannotDistribute: .*no batch at all",
    "validation_that_never_ends": r"UsageError: .*never ends.*validation_steps",
    "a_number_instead_of_rows": r"CannotDistribute: .*a single value.*one row per sample",
    "no_samples": r"UsageError: .*no samples",
    "a_batch_that_a_loader_drops": r"UsageError: .*no batch: 50 samples, batches of 64, and drop_last",
    "class_weights_beside_a_loader": r"UsageError: class_weight.*sample weights from the data set",
    "arrays_of_different_lengths": r"UsageError: .*49, 50",
    "what_is_no_array": r"CannotDistribute: can't cut a builtins.set",
    "no_data": r"UsageError: .*no data",
    "validation_split_of_everything": r"UsageError: validation_split=1.5",
    "strings_where_keras_takes_none": r"CannotDistribute: .*(strings; Keras takes them on TensorFlow|Python objects)",
    "targets_beside_a_dataset": r"UsageError: .*can't be given beside a",
    "evaluate_nothing": r"(UsageError|CannotDistribute): .*no batch",
    "no_pieces": r"UsageError: .*at least 1 piece",
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_input_is_named_before_training(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"{backend}.json"
    succeeded(trainings.plain(backend, "refusals.py", out))
    told = json.loads(out.read_text())
    assert told.keys() == EXPECTED.keys()
    wrong = {name: told[name] for name, pattern in EXPECTED.items() if not re.search(pattern, told[name], re.DOTALL)}
    assert not wrong
