"""A checkpoint's optimizer state is the same whether servers or workers wrote it, for every optimizer and backend."""

from __future__ import annotations

import json

import pytest

from .runs import Trainings, full, succeeded


@pytest.mark.parametrize("backend", [full("jax"), full("tensorflow"), "torch"])
def test_shards_write_and_read_the_state_of_the_whole_optimizer(trainings: Trainings, backend: str) -> None:
    out = trainings.folder / f"{backend}.json"
    succeeded(trainings.plain(backend, "optimizer_parts.py", out))
    found = json.loads(out.read_text())
    idle = found.pop("idle")
    assert len(found) == 16
    assert {kind for kind, one in found.items() if one["scaled"]} == {kind for kind in found if "scaled" in kind}
    for kind, one in found.items():
        assert one["unlike"] == [], kind
        assert one["more"] == [], kind
        assert one["says"], kind
        assert one["knows"], kind
    assert found["adam"]["shards"] > 1
    assert found["adam"]["pieces"] > 2
    # What never has a gradient is written as it is in the beginning, not as this optimizer has it.
    assert len(idle["unlike"]) == 2
    assert idle["more"] == []
