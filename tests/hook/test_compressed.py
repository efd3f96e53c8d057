"""A codec that a strategy was given, in real trainings: whoever sends gradients encodes them, nobody else."""

from __future__ import annotations

import pytest

from .runs import Trainings, succeeded, told

STEPS = 2 * 4


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("options", "strategy", "expected"),
    [
        # A worker encodes its own sum, and takes everyone's.
        ("-n 2", "allreduce", [(STEPS, 2 * STEPS)] * 2),
        # It encodes what it pushes. The server takes nothing that has another form.
        ("-n 1 --strategy ps --servers 1 --staleness 1", "ps", [(STEPS, 0)]),
        # It encodes its own sum, and pushes its part of the total: the one shard is the first worker's.
        ("-n 2 --strategy ps --servers 1 --staleness 0", "ps", [(2 * STEPS, 2 * STEPS), (STEPS, 2 * STEPS)]),
    ],
    ids=["allreduce", "asynchronous", "synchronous on servers"],
)
def test_gradients_travel_in_the_form_of_the_strategys_codec(
    trainings: Trainings, options: str, strategy: str, expected: list[tuple[int, int]]
) -> None:
    folder = trainings.folder / options.replace(" ", "")
    folder.mkdir()
    succeeded(trainings.shoal("torch", options, "compressed.py", folder, strategy))
    found = told(folder)
    assert [(one["encoded"], one["decoded"] + one["added"]) for one in found] == expected
    assert len({one["weights"] for one in found}) == 1
