"""Steps of a script's own: several optimizers, `train_on_batch`, loops.

They give the numbers of plain Keras, and the same bits for any number of workers, also when some are killed.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .runs import FULL, Trainings, full, succeeded, told

PIECES = "--pieces 4 --threads 1"


def few(backend: str) -> tuple[str, ...]:
    """One scene of each kind where programs are compiled."""
    return () if FULL or backend == "torch" else ("--few",)


def on_two_workers(trainings: Trainings, backend: str) -> list[dict[str, Any]]:
    out = trainings.folder / f"two-{backend}"
    if not out.exists():
        succeeded(trainings.shoal(backend, f"-n 2 {PIECES}", "own_steps.py", out, *few(backend)))
    return told(out)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [full("jax"), full("tensorflow"), "torch"])
def test_steps_of_ones_own_give_plain_keras_numbers(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"plain-{backend}"
    succeeded(trainings.plain(backend, "own_steps.py", out, *few(backend)))
    (plain,) = told(out)
    first, second = on_two_workers(trainings, backend)
    assert first == second  # the chief's batches too, where every worker made its own
    assert first["scenes"].keys() == plain["scenes"].keys()
    for scene, found in first["scenes"].items():
        if "random" not in scene:  # pieces draw numbers of their own
            expected = plain["scenes"][scene]
            assert found["sums"] == pytest.approx(expected["sums"], rel=2e-4, abs=1e-5), scene
            assert found["numbers"] == pytest.approx(expected["numbers"], rel=2e-4, abs=2e-5), scene


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", [full("jax"), full("tensorflow"), "torch"])
def test_steps_of_ones_own_give_the_same_bits_with_workers_killed(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"killed-{backend}"
    killed = trainings.shoal(backend, f"-n 3 {PIECES}", "own_steps.py", out, *few(backend), "--kill", 1)
    succeeded(killed)
    assert len(set(re.findall(r"(worker-\d+) \(pid \d+\) was killed by SIGKILL", killed.stderr))) >= 2, killed.stderr
    for scene, found in on_two_workers(trainings, backend)[0]["scenes"].items():
        assert {other["scenes"][scene]["hash"] for other in told(out)} == {found["hash"]}, scene


def test_a_part_of_a_step_on_tensorflow_computes_nothing_that_only_another_part_gives_out(
    trainings: Trainings,
) -> None:
    out = trainings.folder / "parts.json"
    succeeded(trainings.plain("tensorflow", "parts.py", out))
    assert json.loads(out.read_text()) == [["critic"], ["maker"]]
