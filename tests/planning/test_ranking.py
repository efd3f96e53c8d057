"""What is said of a plan, what fits, and what is left out."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import CannotDistribute
from shoal.launch.planner import other_meshes
from shoal.planning.candidates import Kind, PlanCandidate, candidates
from shoal.planning.facts import PieceTime, at_rows, on_link, with_meshes
from shoal.planning.pace import StepPace
from shoal.planning.ranking import ALIKE, rank, why_first
from shoal.planning.replay import predict
from shoal.planning.words import as_data, table

from .made_up import LINK, MB, Layer, facts_of

LAYERS = [Layer()] * 8
LARGE = [Layer(weights=100 * MB, kept=1_000)] * 4


def test_memory_rules_out_what_does_not_fit_and_says_what_would_have_been_faster() -> None:
    facts = facts_of(LARGE, (1.0, 1.0), base=0)
    fastest = rank(facts).first
    limited = rank(facts, int(fastest.needs) - 1)
    assert not [one for one in limited.ranked if one.fits and one.needs > fastest.needs - 1]
    assert [one.fits for one in limited.ranked] == sorted((one.fits for one in limited.ranked), reverse=True)
    assert limited.first.candidate != fastest.candidate
    assert f"{fastest.candidate.name} would be faster" in why_first(limited).replace("Data", "data").replace("Sl", "sl")


def test_when_nothing_fits_the_smallest_is_named_with_what_it_needs() -> None:
    facts = facts_of(LARGE, (1.0, 1.0))
    with pytest.raises(
        CannotDistribute, match=r"nothing fits into 200 MB per worker. What needs least is pipeline of 2 .*"
    ):
        rank(facts, 200 * MB)


def test_a_worker_of_a_pipeline_needs_its_stage_a_copy_of_another_and_room_for_all_at_the_end() -> None:
    facts = facts_of([Layer(weights=100 * MB, kept=0)] * 4, (1.0,) * 4, base=0)
    quarter = 100 * MB
    held = predict(facts, PlanCandidate(Kind.PIPELINE, 4, 4)).memory
    training, at_end = (2 * 4 + 2) * quarter, 4 * 3 * quarter
    assert held == (pytest.approx(max(training, at_end)),) * 4
    assert predict(facts, PlanCandidate(Kind.DATA, 4)).memory[0] > 1.4 * held[0]


def test_activations_count_as_often_as_pieces_are_on_their_way() -> None:
    facts = facts_of([Layer(weights=0, kept=MB)] * 4, (1.0,) * 4, base=0)
    held = predict(facts, PlanCandidate(Kind.PIPELINE, 16, 4)).memory
    assert held == tuple(pytest.approx(15 * MB * ahead) for ahead in (4, 3, 2, 1))


def test_of_plans_that_are_as_fast_the_simplest_is_first() -> None:
    facts = facts_of(LAYERS, (1.0, 1.0), batch=120, update=0.0)  # nothing to gain from slices
    first = rank(facts).first
    assert (first.candidate.kind, first.candidate.pieces) == (Kind.DATA, 2)
    rest = rank(facts).ranked[1:]
    assert any(one.seconds < ALIKE * first.seconds and one.candidate.kind is Kind.SLICED for one in rest)


def test_what_cannot_be_is_left_out_with_its_reason() -> None:
    facts = facts_of(LAYERS, (1.0, 1.0), sliced=False)
    facts = msgspec.structs.replace(facts, cuts=(), left_out={"pipeline": "it has a `call` of its own"})
    ranking = rank(facts)
    assert {one.candidate.kind for one in ranking.ranked} == {Kind.DATA}
    assert "left out: pipeline: it has a `call` of its own" in table(ranking, "train.py")
    assert as_data(ranking, {})["left_out"] == facts.left_out


def test_the_table_and_the_data_say_the_same() -> None:
    ranking = rank(facts_of(LAYERS, (1.0, 0.5)), 10**9)
    data, text = as_data(ranking, {"script": "train.py"}), table(ranking, "train.py: 2 workers")
    assert [plan["plan"] for plan in data["plans"]] == [one.candidate.name for one in ranking.ranked]
    assert data["plans"][0]["plan"] in text.splitlines()[3]
    assert f"Run it: shoal run -n 2 {data['plans'][0]['flags']}" in text
    assert all(len(plan["busy"]) == len(plan["memory_bytes"]) == 2 for plan in data["plans"])
    assert all(0 < share <= 1.0 + 1e-9 for plan in data["plans"] for share in plan["busy"])


def test_fixed_pieces_are_the_only_ones_that_are_considered() -> None:
    assert {one.pieces for one in candidates(facts_of(LAYERS, (1.0, 1.0)), pieces=6)} == {6}


def test_batches_with_fewer_rows_than_workers_still_have_a_plan() -> None:
    assert rank(facts_of(LAYERS, (1.0, 1.0, 1.0), batch=2)).first.candidate.pieces == 2


def test_one_worker_has_nothing_to_choose() -> None:
    assert {one.kind for one in candidates(facts_of(LAYERS, (1.0,)))} == {Kind.DATA}


def test_a_slow_link_makes_the_plan_that_moves_less_the_faster_one() -> None:
    facts = facts_of(LARGE, (1.0, 1.0))
    across = msgspec.structs.replace(facts, link=on_link(LINK, 10_000_000))
    assert rank(across).first.candidate.kind is Kind.PIPELINE
    assert (
        predict(across, PlanCandidate(Kind.DATA, 2)).seconds > 10 * predict(facts, PlanCandidate(Kind.DATA, 2)).seconds
    )


def test_times_are_exact_where_they_were_measured_and_lie_between_elsewhere() -> None:
    times = (PieceTime(8, 1.0, 2.0, 80), PieceTime(16, 1.5, 3.0, 160), PieceTime(32, 3.0, 6.0, 320))
    assert at_rows(times, 16) == (1.5, 3.0, 160)
    assert at_rows(times, 12) == (1.25, 2.5, 120)
    assert at_rows(times, 64)[0] == pytest.approx(6.0)
    assert at_rows(times, 1)[0] >= 1.0 / 8  # never less than in proportion
    assert at_rows(times[:1], 4) == (0.5, 1.0, 40)


def test_steps_are_compared_with_what_was_predicted_soon_and_then_rarely() -> None:
    pace, told = StepPace(0.010), {}
    for step in range(1000):
        if text := pace.step(now=step * 0.015):
            told[step + 1] = text
    assert list(told) == [60, 600]
    assert told[60] == "steps take 15 ms; 10 ms were predicted: 1.50 times that"


def test_workers_with_several_devices_choose_among_meshes() -> None:
    facts = facts_of(LAYERS, (1.0, 1.0), batch=120)
    assert facts.whole is not None
    halved = msgspec.structs.replace(facts.whole, weights=16 * MB, optimizer=32 * MB)
    split = msgspec.structs.replace(facts, whole=halved)
    meshed = with_meshes(facts, {"batch=2": facts, "batch=2,fsdp": split}, {"mesh batch=1,model=2": "nothing divides"})
    ranking = rank(meshed)
    assert {one.candidate.mesh for one in ranking.ranked} == {"batch=2", "batch=2,fsdp"}
    assert ranking.first.candidate.flags == "--devices-per-worker 2 --mesh batch=2 --pieces 2"
    whole, half = (next(o for o in ranking.ranked if o.candidate.mesh == mesh) for mesh in ("batch=2", "batch=2,fsdp"))
    assert whole.needs - half.needs == pytest.approx(48 * MB)
    assert ranking.left_out["mesh batch=1,model=2"] == "nothing divides"
    assert other_meshes(4) == ["batch=4,fsdp", "batch=2,model=2", "batch=1,model=4"]
