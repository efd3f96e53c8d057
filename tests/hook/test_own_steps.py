"""Steps of a script's own: several optimizers, `train_on_batch`, loops.

They give the numbers of plain Keras, and the same bits for any number of workers, also when some are killed.
"""

from __future__ import annotations

import json
import re

import pytest

from .runs import BACKENDS, FULL, Trainings, succeeded, told


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_ones_own_give_plain_keras_numbers_and_the_same_bits_with_workers_killed(
    trainings: Trainings, backend: str
) -> None:
    few = () if FULL or backend == "torch" else ("--few",)  # elsewhere programs are compiled
    succeeded(trainings.plain(backend, "own_steps.py", trainings.folder / "plain", *few))
    options = "--pieces 4 --threads 1"
    fewer = f"-n {1 if few else 2} {options}"
    succeeded(trainings.shoal(backend, fewer, "own_steps.py", trainings.folder / "fewer", *few))
    killed = trainings.shoal(backend, f"-n 3 {options}", "own_steps.py", trainings.folder / "killed", *few, "--kill", 1)
    succeeded(killed)
    assert len(set(re.findall(r"(worker-\d+) \(pid \d+\) was killed by SIGKILL", killed.stderr))) >= 2, killed.stderr
    (plain,) = told(trainings.folder / "plain")
    first, *others = told(trainings.folder / "fewer")
    for scene, found in first["scenes"].items():
        hashes = {other["scenes"][scene]["hash"] for other in (*others, *told(trainings.folder / "killed"))}
        assert hashes == {found["hash"]}, scene
        if "random" not in scene:  # pieces draw numbers of their own
            expected = plain["scenes"][scene]
            assert found["sums"] == pytest.approx(expected["sums"], rel=2e-4, abs=1e-5), scene
            assert found["numbers"] == pytest.approx(expected["numbers"], rel=2e-4, abs=2e-5), scene
    assert all(other["differing"] == first["differing"] for other in others)  # the chief's batches


def test_a_part_of_a_step_on_tensorflow_computes_nothing_that_only_another_part_gives_out(
    trainings: Trainings,
) -> None:
    out = trainings.folder / "parts.json"
    succeeded(trainings.plain("tensorflow", "parts.py", out))
    assert json.loads(out.read_text()) == [["critic"], ["maker"]]
