"""With `pieces` and threads fixed, weights, optimizer and metrics are the same bits for any number of workers."""

from __future__ import annotations

import pytest

from .runs import BACKENDS, FULL, QUICKLY_COMPILED, Trainings, succeeded, told

SLICED = {2: ("sliced",), 3: ("sliced",)}  # for each worker a part of the weights: that changes no bit either
RUNS = {1: "-n 1", 2: "-n 2", 3: "-n 3 --transport tcp", 4: "-n 4"}


@pytest.fixture(scope="module")
def optimized(trainings: Trainings) -> Trainings:
    """With the programs that users' trainings have: what a compiler does to sums is a part of this promise."""
    for name in QUICKLY_COMPILED:
        del trainings.environ[name]
    return trainings


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_to_four_workers_give_the_same_bits_over_shared_memory_and_tcp(optimized: Trainings, backend: str) -> None:
    outcomes = []
    numbers = RUNS if FULL or backend == "torch" else (1, 2)  # elsewhere programs are compiled
    for number in numbers:
        out = optimized.folder / f"{backend}-{number}"
        options = f"{RUNS[number]} --pieces 4 --threads 1"
        succeeded(optimized.shoal(backend, options, "same_bits.py", out, *SLICED.get(number, ())))
        outcomes += told(out)
    assert len(outcomes) == sum(numbers)
    control = outcomes[0].pop("left_to_right")
    for name, expected in outcomes[0].items():
        assert all(outcome[name] == expected for outcome in outcomes), name
    assert outcomes[0]["float16_with_overflow"]["skipped"] > 0
    # The control: without the tree the sum depends on who holds which pieces, and this test can see it.
    assert control["weights"] != outcomes[0]["wide"]["weights"]
