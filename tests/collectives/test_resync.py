"""What the members of a new view owe each other, given where each stands."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives.resync import Orders, WorkerStanding, resync
from shoal.errors import Diverged

NEW = WorkerStanding()


def at(acts: int) -> WorkerStanding:
    """In the middle of something."""
    return WorkerStanding(acts)


def between(acts: int) -> WorkerStanding:
    """Between two steps."""
    return WorkerStanding(acts, between_steps=True)


def orders(*standings: WorkerStanding) -> Orders:
    return resync([f"worker-{rank}" for rank in range(len(standings))], standings)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([at(0)], Orders(0)),
        ([at(2), at(2), at(2)], Orders(0)),
        ([at(3), at(2), at(3)], Orders(0, behind=frozenset({1}))),
        ([at(2), at(2), at(3)], Orders(2, behind=frozenset({0, 1}))),
        ([between(3), between(3), NEW], Orders(0, newcomers=frozenset({2}))),
        ([NEW, at(3), between(3)], Orders(2, newcomers=frozenset({0}))),
        ([at(2), at(2), NEW], Orders(0, declined=frozenset({2}))),
        ([at(2), between(3), NEW, NEW], Orders(1, frozenset({0}), newcomers=frozenset({2, 3}))),
        ([at(3), between(2), NEW], Orders(0, frozenset({1}), declined=frozenset({2}))),
        ([at(3), at(2), between(3), NEW], Orders(2, frozenset({1}), newcomers=frozenset({3}))),
        ([between(0), NEW], Orders(0, newcomers=frozenset({1}))),
    ],
    ids=[
        "alone",
        "all at one point",
        "one is behind",
        "the first who has it gives",
        "a newcomer",
        "who stands between two steps tells it",
        "nobody can tell it",
        "one behind and two newcomers",
        "one behind can not tell what it does not know",
        "the giver is ahead and between two steps",
        "a newcomer before anything was done",
    ],
)
def test_who_gives_what_to_whom(standings: list[WorkerStanding], expected: Orders) -> None:
    assert orders(*standings) == expected


def test_members_that_are_further_apart_than_a_loss_can_tear_them_are_named_with_their_place() -> None:
    with pytest.raises(Diverged, match=r"worker-0 at 5, worker-2 at 3\. Every worker must make the same calls"):
        orders(at(5), NEW, at(3))


def test_newcomers_among_themselves_know_nothing() -> None:
    with pytest.raises(Diverged, match="worker-0, worker-1: all of these have just come"):
        orders(NEW, NEW)


def test_a_standing_survives_the_wire() -> None:
    for standing in (NEW, at(0), at(7), between(7)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(standing), type=WorkerStanding) == standing


@st.composite
def torn_apart(draw: st.DrawFn) -> list[WorkerStanding]:
    """A view's members after a loss: at most one act apart, newcomers among them, at least one who is none."""
    acts = draw(st.integers(1, 100))
    known = draw(st.lists(st.builds(WorkerStanding, st.sampled_from([acts, acts - 1]), st.booleans()), min_size=1))
    return list(draw(st.permutations(known + [NEW] * draw(st.integers(0, 4)))))


@given(torn_apart())
def test_everyone_gets_what_it_lacks_from_one_who_has_it(standings: list[WorkerStanding]) -> None:
    given = orders(*standings)
    most = max(standing.acts for standing in standings if standing.acts is not None)
    for rank, standing in enumerate(standings):
        assert (rank in given.behind) == (standing.acts == most - 1)
        assert (rank in given.newcomers | given.declined) == (standing.acts is None)
    assert standings[given.giver].acts == most
    assert not given.newcomers & given.declined
    assert given.giver not in given.behind | given.newcomers | given.declined


@given(torn_apart())
def test_newcomers_are_let_in_just_when_someone_can_tell_them_all_that_was_done(
    standings: list[WorkerStanding],
) -> None:
    given = orders(*standings)
    most = max(standing.acts for standing in standings if standing.acts is not None)
    able = any(standing.acts == most and standing.between_steps for standing in standings)
    assert bool(given.newcomers) == (able and NEW in standings)
    assert bool(given.declined) == (not able and NEW in standings)
    if given.newcomers:
        assert standings[given.giver].between_steps


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_members_more_than_one_apart_never_get_orders(acts: list[int]) -> None:
    if max(acts) - min(acts) > 1:
        with pytest.raises(Diverged):
            orders(*map(at, acts))
    else:
        assert standing_after(orders(*map(at, acts)), acts) == [max(acts)] * len(acts)


def standing_after(given: Orders, acts: list[int]) -> list[int]:
    """Where all stand when the orders are carried out."""
    return [count + (rank in given.behind) for rank, count in enumerate(acts)]


def test_newcomers_among_themselves_go_on_from_what_all_have_found():
    found = WorkerStanding(has_found=True)
    assert orders(found, found) == Orders(0, anew=True)
    assert orders(found, between(3)) == Orders(1, newcomers=frozenset({0}))
    with pytest.raises(Diverged, match="nobody knows where the run stands"):
        orders(found, NEW)
