"""What can't be distributed is refused before anything is trained, with a message that says what to do."""

from __future__ import annotations

import json
import re

import pytest

from .runs import BACKENDS, Trainings, succeeded

EXPECTED = {
    "more_pieces_than_samples_in_a_batch": r"CannotDistribute: 4 pieces .* batch has 3.*fewer pieces",
    "fewer_samples_than_a_batch": r"UsageError: .*10 samples do not fill one batch of 16.*at most 10",
    "generator_without_steps": r"UsageError: .*generator needs steps_per_epoch",
    "endless_tf_dataset_without_steps": r"UsageError: .*never ends.*steps_per_epoch",
    "arrays_of_different_lengths": r"UsageError: .*49, 50",
    "sparse_data": r"CannotDistribute: can't cut a scipy.*dense",
    "no_data": r"UsageError: .*no data",
    "validation_split_of_everything": r"UsageError: validation_split=1.5",
    "sum_over_the_batch": r"CannotDistribute: .*reduction='sum'.*sum_over_batch_size",
    "two_applies": r"CannotDistribute: .*Stepper.*more than once.*apply once",
    "another_optimizer": r"CannotDistribute: .*Stepper.*'other'.*not the model's own",
    "no_apply": r"CannotDistribute: .*Stepper.*never gave gradients",
    "weights_changed_by_the_step": r"CannotDistribute: .*Follower.*(changes|assigns) .*weight.*on_train_batch_end",
    "state_computed_from_updated_weights": r"CannotDistribute: .*Follower.*after it gave.*on_train_batch_end",
    "strings": r"CannotDistribute: .*strings.*numbers",
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
