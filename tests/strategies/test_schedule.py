"""Schedules end, keep few pieces in flight, and are replayed as they would run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.strategies.balance import Balance
from shoal.strategies.holders import deal, lost_stages, may_leave, share
from shoal.strategies.schedule import Action, Pass, actions_of, one_stage, replay


def evenly(action: Action, rank: int) -> float:
    return 1.0 if action.kind is Pass.FORWARD else 2.0


def schedule_for(workers: int, stages: int, pieces: int) -> list[list[Action]]:
    members = tuple(f"worker-{rank}" for rank in range(workers))
    holders = deal([1.0] * stages, members)
    held = share(holders, pieces, members, [Balance.start()] * stages)
    return [actions_of(held, rank) for rank in range(workers)]


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(2, 5), st.integers(1, 12))
def test_every_schedule_does_every_pass_once_and_ends(workers: int, stages: int, pieces: int) -> None:
    schedule = schedule_for(workers, stages, pieces)
    done = [action for actions in schedule for action in actions]
    assert len(done) == len(set(done)) == 2 * stages * pieces
    played = replay(schedule, stages, evenly)
    assert played.seconds >= 3.0 * pieces * stages / workers - 1e-9


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 12))
def test_a_stage_keeps_no_more_pieces_than_there_are_stages_from_it_on(stages: int, pieces: int) -> None:
    for stage in range(stages):
        kept = most = 0
        for action in one_stage(stage, stages, range(pieces)):
            kept += 1 if action.kind is Pass.FORWARD else -1
            most = max(most, kept)
        assert most <= stages - stage
        assert kept == 0


def test_pieces_are_summed_in_ascending_order_whatever_the_schedule() -> None:
    for actions in schedule_for(5, 3, 9):
        for stage in range(3):
            backward = [a.piece for a in actions if a.stage == stage and a.kind is Pass.BACKWARD]
            assert backward == sorted(backward)


def test_the_bubble_of_one_forward_one_backward_is_as_in_the_books() -> None:
    stages, pieces = 4, 8
    played = replay(schedule_for(stages, stages, pieces), stages, evenly)
    assert played.bubble == pytest.approx((stages - 1) / (pieces + stages - 1))
    assert played.seconds == 3.0 * (pieces + stages - 1)


def test_what_is_on_its_way_takes_time() -> None:
    schedule = schedule_for(2, 2, 1)
    assert replay(schedule, 2, evenly, hop=lambda before, after: 0.5).seconds == 7.0


def test_workers_that_would_wait_for_each_other_are_named() -> None:
    forward, backward = Action(Pass.FORWARD, 0, 0), Action(Pass.BACKWARD, 0, 0)
    with pytest.raises(UsageError, match="all wait for each other"):
        replay([[backward, forward]], 1, evenly)


def test_stages_are_dealt_by_what_they_cost() -> None:
    members = tuple("abcd")
    assert deal([3.0, 1.0], members) == {"a": (0,), "b": (0,), "c": (0,), "d": (1,)}
    assert deal([1.0, 1.0, 1.0], ("a", "b")) == {"a": (0,), "b": (1, 2)}


def test_peers_take_over_the_pieces_of_who_is_lost_and_a_stage_without_holders_is_named() -> None:
    holders = deal([1.0, 1.0], ("a", "b", "c", "d"))
    assert lost_stages(holders, 2, ("b", "c", "d")) == []
    held = share(holders, 4, ("b", "c", "d"), [Balance.start()] * 2)
    assert held == ((range(4), range(0), range(0)), (range(0), range(2), range(2, 4)))
    assert lost_stages(holders, 2, ("a", "b")) == [1]


def test_nobody_leaves_who_is_the_last_to_hold_a_stage() -> None:
    holders = deal([1.0, 1.0], ("a", "b", "c"))
    assert may_leave(holders, 2, ("a", "b", "c"), ("a", "b", "c")) == ("a",)
