"""Data of which every worker reads its own rows only: the same bits on any number of workers, nothing is read twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .runs import Trainings, full, succeeded


def train(trainings: Trainings, workers: int) -> list[dict[str, Any]]:
    """What each worker says."""
    out = trainings.folder / f"on-{workers}"
    succeeded(trainings.shoal("torch", f"-n {workers} --pieces 4 --threads 1", "sharded.py", out))
    return [json.loads((out.parent / f"{out.name}-{rank}.json").read_text()) for rank in range(workers)]


@pytest.mark.parametrize("workers", [(2, 4), full((1, 2, 3, 4))])
def test_grain_hugging_face_and_streams_in_shards_are_read_by_all_and_give_the_same_bits(
    trainings: Trainings, workers: tuple[int, ...]
) -> None:
    told = {count: train(trainings, count) for count in workers}
    first, *others = [worker for among in told.values() for worker in among]
    for worker in others:
        assert worker["weights"] == first["weights"]
        assert worker["predicted"] == first["predicted"]
    for count, among in told.items():
        for kind in first["read"]:
            read = [worker["read"][kind] for worker in among]
            # Each row by one worker, but for those of pieces that moved to a faster one after they were read.
            assert sum(read) <= 1.1, (count, kind, read)
