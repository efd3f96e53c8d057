"""The plan that is chosen is as fast as the best of all that could be run, in the eyes of somebody else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.planning.candidates import Kind, PlanCandidate
from shoal.planning.facts import LinkFacts, PlanFacts
from shoal.planning.ranking import rank
from shoal.planning.replay import predict

from .independent import seconds_of
from .made_up import LINK, MB, SLOW_LINK, Layer, facts_of

EVEN = [Layer()] * 12
WIDE = [Layer(weights=40 * MB, forward=5e-5)] * 8  # the update and the exchange are most of it
DEEP = [Layer(forward=6e-5 * (1 + place % 3), kept=200_000) for place in range(16)]
TAPERED = [Layer(forward=3e-4 / (1 + place), weights=(1 + place) * 3 * MB, sends=40_000) for place in range(9)]
MODELS = {"even": EVEN, "wide": WIDE, "deep": DEEP, "tapered": TAPERED}

CASES = [
    (name, speeds, memory, link)
    for name in MODELS
    for speeds, memory, link in (
        ((1.0, 0.25), None, LINK),
        ((1.0, 1.0, 1.0, 1.0), 0.75, LINK),
        ((1.0, 1.0, 0.5, 0.5), None, SLOW_LINK),
        ((1.0, 0.9, 0.6), 0.8, LINK),
    )
]
UPDATE = 1.5e-9


def every_way(facts: PlanFacts) -> list[PlanCandidate]:
    """All that a run can be told: any number of pieces, and of stages."""
    workers = facts.workers
    together = [
        PlanCandidate(kind, count) for kind in (Kind.DATA, Kind.SLICED) for count in range(workers, 8 * workers + 1)
    ]
    piped = [
        PlanCandidate(Kind.PIPELINE, count, stages)
        for stages in range(2, workers + 1)
        for count in range(1, 6 * workers + 1)
    ]
    return together + piped


@pytest.mark.parametrize(("model", "speeds", "part", "link"), CASES, ids=str)
def test_the_first_is_as_fast_as_the_best_of_all_ways(
    model: str, speeds: tuple[float, ...], part: float | None, link: LinkFacts
) -> None:
    layers = MODELS[model]
    facts = facts_of(layers, speeds, link=link)
    memory = None
    if part is not None:  # so that the plan that needs most does not fit
        most = max(max(predict(facts, one).memory) for one in every_way(facts))
        memory = int(facts.base + part * (most - facts.base))

    def real(candidate: PlanCandidate) -> float:
        return seconds_of(candidate, layers, speeds, facts.batch, link, UPDATE)

    chosen = rank(facts, memory).first
    assert memory is None or max(chosen.prediction.memory) <= memory
    fitting = [one for one in every_way(facts) if memory is None or max(predict(facts, one).memory) <= memory]
    best = min(fitting, key=real)
    ratio = real(chosen.candidate) / real(best)
    assert ratio <= 1.05, f"{chosen.candidate.name}: {ratio:.3f} times as long as {best.name}"


def test_the_cases_are_not_all_alike() -> None:
    """Otherwise they would show nothing: each kind of plan is first somewhere."""
    firsts = {rank(facts_of(MODELS[model], speeds, link=link)).first.candidate.kind for model, speeds, _, link in CASES}
    assert firsts >= {Kind.SLICED, Kind.PIPELINE}


@pytest.mark.parametrize(("model", "speeds", "part", "link"), CASES, ids=str)
def test_the_replay_agrees_with_a_second_simulation(
    model: str, speeds: tuple[float, ...], part: float | None, link: LinkFacts
) -> None:
    layers = MODELS[model]
    facts = facts_of(layers, speeds, link=link)
    off = [_error(facts, layers, candidate) for candidate in every_way(facts) if _is_measured(facts, candidate)]
    assert len(off) >= 5
    assert max(off) < 0.05


def _is_measured(facts: PlanFacts, candidate: PlanCandidate) -> bool:
    """Whether all its pieces have a size at which the model was timed: no error of the line between two."""
    stage = facts.whole if candidate.kind is not Kind.PIPELINE else facts.cuts[candidate.stages - 2].stages[0]
    assert stage is not None
    return facts.batch % candidate.pieces == 0 and facts.batch // candidate.pieces in [t.rows for t in stage.times]


def _error(facts: PlanFacts, layers: Sequence[Layer], candidate: PlanCandidate) -> float:
    real = seconds_of(candidate, layers, facts.speeds, facts.batch, facts.link, UPDATE)
    return abs(predict(facts, candidate).seconds / real - 1)
