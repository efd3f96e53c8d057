"""A worker that is slower than the other gets less to do; the weights do not tell."""

from __future__ import annotations

import re

from .runs import Trainings, succeeded


def told(trainings: Trainings, options: str, seconds: float) -> tuple[dict[int, int], set[str], str]:
    """Samples by rank, the hashes of the weights, and what was said."""
    result = trainings.shoal("torch", f"-n 2 --threads 1 --verbose {options}", "unequal.py", seconds)
    succeeded(result)
    said = result.stdout + result.stderr
    found = re.findall(r"worker (\d) samples (\d+) weights (\w+)", said)
    return {int(rank): int(samples) for rank, samples, _ in found}, {hash for *_, hash in found}, said


def test_with_fixed_pieces_a_slow_worker_computes_fewer_of_them_and_the_weights_are_the_same(
    trainings: Trainings,
) -> None:
    equal, weights, _ = told(trainings, "--pieces 8", 0.0)
    unequal, same, said = told(trainings, "--pieces 8", 0.006)
    assert weights == same
    assert len(weights) == 1
    assert equal[0] + equal[1] == unequal[0] + unequal[1]
    assert unequal[1] < unequal[0]  # by how much depends on what else this machine does
    assert "pieces, not" not in said


def test_if_pieces_were_not_fixed_there_are_more_of_them_when_speeds_differ(trainings: Trainings) -> None:
    samples, weights, said = told(trainings, "", 0.004)
    raised, *given_back = re.findall(r"(speeds differ|not get shorter by it): (\d+) pieces, not \d+, from step", said)
    assert raised[0] == "speeds differ", said
    assert int(raised[1]) >= 4
    last = [raised, *given_back][-1]  # on a loaded machine many small pieces may not pay
    assert f"pieces {last[1]}\n" in said, "what `shoal status` shows"
    assert samples[1] < samples[0]
    assert len(weights) == 1, "all workers changed at the same step"
