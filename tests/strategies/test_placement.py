"""Who holds which stage, from view to view: every stage has somebody, and a loss takes none of them away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.strategies.holders import deal, stage_speeds
from shoal.strategies.placement import Move, StagePlacement, moves, place, settle
from shoal.strategies.stages import LayerCall, ModelGraph, choose_cuts
from shoal.strategies.stages import costs as stage_costs

COSTS = [1.0, 1.0]


def test_a_stage_that_one_member_computes_is_kept_by_another() -> None:
    placed = place([1.0, 1.0, 1.0], ("a", "b", "c", "d"), copies=True)
    assert placed.computes == {"a": (0,), "b": (0,), "c": (1,), "d": (2,)}
    assert placed.keeps == {"a": (2,), "b": (), "c": (), "d": (1,)}
    assert place([1.0, 1.0], ("a", "b"), copies=False).keeps == {"a": (), "b": ()}


def test_a_keeper_computes_a_stage_when_whoever_did_is_lost() -> None:
    left = settle(place(COSTS, ("a", "b"), copies=True), COSTS, ("b",), copies=True)
    assert left == StagePlacement({"b": (0, 1)}, {"b": ()})


def test_a_newcomer_computes_the_stage_whose_members_have_most_to_do_and_who_did_keeps_it() -> None:
    alone = StagePlacement({"b": (0, 1)}, {"b": ()})
    both = settle(alone, COSTS, ("b", "c"), copies=True)
    assert both == StagePlacement({"b": (1,), "c": (0,)}, {"b": (0,), "c": (1,)})
    assert moves(alone, both, ("b", "c")) == [Move(0, 0, {1}), Move(1, 0, {1})]


def test_what_nobody_has_stays_without_anybody() -> None:
    left = settle(place(COSTS, ("a", "b"), copies=False), COSTS, ("b",), copies=False)
    assert left.holds == {"b": (1,)}


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(0, 3), st.booleans(), st.lists(st.integers(0, 99), max_size=12))
def test_one_loss_at_a_time_takes_no_stage_away_and_all_who_hold_one_have_got_it(
    stages: int, more: int, replaced: bool, kills: list[int]
) -> None:
    costs = [1.0 + 0.3 * (stage % 3) for stage in range(stages)]
    members = [f"worker-{number}" for number in range(stages + more)]
    count = len(members)
    placed = place(costs, members, copies=True)
    for kill in kills:
        if len(members) == 1 and not replaced:
            break
        del members[kill % len(members)]
        if replaced:
            members.append(f"worker-{count}")
            count += 1
        after = settle(placed, costs, tuple(members), copies=True)
        had = {member: set(held) for member, held in placed.holds.items() if member in members}
        for stage, giver, takers in moves(placed, after, members):
            assert stage in had[members[giver]]
            for taker in takers:
                had.setdefault(members[taker], set()).add(stage)
        for member, held in after.holds.items():
            assert set(held) <= had[member]
        assert {stage for own in after.computes.values() for stage in own} == set(range(stages))
        if len(members) > 1:
            assert all(sum(stage in held for held in after.holds.values()) > 1 for stage in range(stages))
        assert settle(after, costs, tuple(members), copies=True) == after
        placed = after


# Members that are not equally fast ------------------------------------------------------------------------


def longest(costs: Sequence[float], dealt: Mapping[str, tuple[int, ...]], speeds: Mapping[str, float]) -> float:
    """What the slowest takes: a stage with all who compute it, or a member with all of its stages."""
    if any(len(held) > 1 for held in dealt.values()):
        return max(sum(costs[stage] for stage in held) / speeds[member] for member, held in dealt.items())
    hands = [sum(speeds[member] for member, held in dealt.items() if stage in held) for stage in range(len(costs))]
    return max(cost / hand if hand else inf for cost, hand in zip(costs, hands, strict=True))


SPEED = st.sampled_from([0.2, 0.25, 0.5, 0.7, 1.0])


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4), st.lists(SPEED, min_size=1, max_size=5))
def test_unequal_members_get_stages_by_their_speeds_nearly_as_well_as_can_be(
    costs: list[float], speeds: list[float]
) -> None:
    members = [f"worker-{rank}" for rank in range(len(speeds))]
    known = dict(zip(members, speeds, strict=True))
    dealt = deal(costs, members, speeds)
    assert sorted({stage for held in dealt.values() for stage in held}) == list(range(len(costs)))
    assert all(dealt[member] for member in members)
    reached = longest(costs, dealt, known)
    assert reached <= longest(costs, deal(costs, members), known) * 1.001
    if len(members) >= len(costs):
        every = product(range(len(costs)), repeat=len(members))
        best = min(longest(costs, {m: (s,) for m, s in zip(members, one, strict=True)}, known) for one in every)
        assert reached <= 1.25 * best
    elif len(set(speeds)) > 1:  # neighbouring stages, in the order of ranks: the best of all ways
        ways = combinations(range(1, len(costs)), len(members) - 1)
        runs = [[0, *way, len(costs)] for way in ways]
        best = min(
            longest(costs, {m: tuple(range(*bounds[r : r + 2])) for r, m in enumerate(members)}, known)
            for bounds in runs
        )
        assert reached <= best * 1.001


def test_equal_members_are_dealt_to_as_if_nobody_had_measured_them() -> None:
    for count in range(1, 6):
        members = [f"worker-{rank}" for rank in range(count)]
        assert deal([3.0, 1.0, 2.0], members, [0.5] * count) == deal([3.0, 1.0, 2.0], members)


@settings(deadline=None, max_examples=60)
@given(st.lists(SPEED, min_size=2, max_size=6), st.integers(2, 3))
def test_with_cuts_that_follow_the_speeds_all_workers_are_busy(speeds: list[float], stages: int) -> None:
    """A model of many layers, cut for these workers: the slowest stage takes little longer than if it were water."""
    if len(speeds) < stages:
        return
    calls = tuple(LayerCall(f"dense_{n}", (n,), (n + 1,)) for n in range(200))
    graph = ModelGraph(calls, (0,), (200,))
    cuts = choose_cuts(graph, stages, stage_speeds(speeds, stages))
    costs = stage_costs(graph, cuts)
    members = [f"worker-{rank}" for rank in range(len(speeds))]
    known = dict(zip(members, speeds, strict=True))
    reached = longest(costs, deal(costs, members, speeds), known)
    assert reached <= 1.1 * 200 / sum(speeds)
    blind = choose_cuts(graph, stages)
    held = deal(stage_costs(graph, blind), members)
    assert reached <= longest(stage_costs(graph, blind), held, known) * 1.001


def test_two_stages_of_a_worker_and_one_at_a_quarter_of_its_speed_are_four_to_one() -> None:
    assert stage_speeds((1.0, 0.25), 2) == (1.0, 0.25)
    assert stage_speeds((0.25, 1.0, 1.0), 2) == (1.25, 1.0)
    with pytest.raises(UsageError, match="1 speeds for 2 stages"):
        stage_speeds((1.0,), 2)
