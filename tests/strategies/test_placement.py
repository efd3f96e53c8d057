"""Who holds which stage, from view to view: every stage has somebody, and a loss takes none of them away."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.strategies.placement import Move, StagePlacement, moves, place, settle

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
