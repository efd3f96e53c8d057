"""What a training gives on two workers is what plain Keras gives on one, to the rounding of summation order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from .runs import BACKENDS, FULL, Trainings, succeeded, told

# Half precision rounds every activation, and the order of sums decides which way.
TOLERANCE = {"mixed_bfloat16": 4e-3, "mixed_float16": 1e-3}
# Where programs are compiled: what the backends' engines do each in their own way.
SHORT = {
    "jax": (
        "gradient_accumulation",
        "mixed_float16",
        "custom_train_step",
    ),
    "tensorflow": (
        "several_inputs_and_outputs",
        "variables_in_another_order",
        "ragged",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_feature_of_fit_gives_the_one_machine_result(trainings: Trainings, backend: str) -> None:
    plain, shared = trainings.folder / f"{backend}-plain", trainings.folder / f"{backend}-shared"
    cases = () if FULL else SHORT.get(backend, ())  # none: all
    succeeded(trainings.plain(backend, "one_machine.py", plain, *cases))
    succeeded(trainings.shoal(backend, "-n 2 --threads 1", "one_machine.py", shared, *cases))
    (expected,) = told(plain)
    workers = told(shared)
    assert len(workers) == 2
    wrong = []
    for name, result in expected.items():
        for rank, worker in enumerate(workers):
            found, wanted = dict(numbers(worker[name])), dict(numbers(result))
            assert found.keys() == wanted.keys(), (name, rank)
            for what, value in wanted.items():
                if not np.allclose(found[what], value, rtol=1e-4, atol=TOLERANCE.get(name, 1e-5), equal_nan=True):
                    wrong.append((name, rank, what, found[what], value))
    assert not wrong, wrong[:5]
    if "callbacks_that_decide" in expected:
        decided = expected["callbacks_that_decide"]["history"]
        assert len(decided["loss"]) < 8, "it was stopped early"
        assert min(decided["learning_rate"]) < max(decided["learning_rate"])


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from numbers(part, f"{path}/{key}")
    elif isinstance(value, list) and value and isinstance(value[0], list):
        for i, part in enumerate(value):
            yield from numbers(part, f"{path}[{i}]")
    else:
        yield path, np.array(value, float)
