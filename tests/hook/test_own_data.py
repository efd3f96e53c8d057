"""Every worker loads its own data: what is not the same is made the same, or refused."""

from __future__ import annotations

import re

import numpy as np

from .runs import Trainings, succeeded, told

REFUSED = {
    "arrays": r"Diverged: fit\(\): the data of worker-1 differs from the chief's",
    "generator": r"Diverged: fit\(\): the first batch of worker-1 .*whole data",
    "py_dataset": r"Diverged: fit\(\): the data of worker-1 differs from the chief's",
    "shard": r"CannotDistribute: fit\(\): .*\.shard\(2, 0\), \.shard\(2, 1\).*Leave `\.shard\(\)` out",
    "shard_of_zip": r"CannotDistribute: fit\(\): .*\.shard\(2, 0\), \.shard\(2, 1\)",
    "sampler": r"CannotDistribute: fit\(\): .*a DistributedSampler, part [01] of 2. Leave it out",
    "sampler_of_others": r"CannotDistribute: fit\(\): .*a DistributedSampler, part [01] of 3. Leave it out",
    "sampler_of_batches": r"CannotDistribute: fit\(\): .*a DistributedSampler, part [01] of 2. Leave it out",
    "iterable": r"Diverged: fit\(\): the first batch of worker-1 .*whole data",
    "chief_raises": r"CannotDistribute: .*a single value where an array with one row per sample was expected",
}


def test_other_data_is_the_chiefs_by_chance_and_an_error_by_rank(trainings: Trainings) -> None:
    out = trainings.folder / "out"
    run = trainings.shoal("tensorflow", "-n 2 --check-every 1", "own_data.py", out)
    succeeded(run)
    chief, other = told(out)
    assert chief["chance"] == other["chance"]
    assert np.isfinite(chief["chance"]["arrays"]).all()
    line = r"shoal: \S*own_data.py:\d+: fit\(\): the data of worker-1 is not the chief's, which all workers take"
    assert re.search(line, run.stderr), run.stderr
    for worker in (chief["rank"], other["rank"]):
        for scene, pattern in REFUSED.items():
            assert re.match(pattern, str(worker[scene])), (scene, worker[scene])
        assert worker["sampler_of_one"] == worker["whole"]  # it leaves nothing out
        assert np.isfinite(worker["subset"]).all()
