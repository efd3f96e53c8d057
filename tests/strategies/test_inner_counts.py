"""Where steps are uneven, each piece of a round is one replica's, and all members come to the same counts."""

from __future__ import annotations

import itertools

import pytest

from shoal.strategies.balance import Balance, WorkerPace
from shoal.strategies.inner_counts import counts_for, counts_of, dealt_pieces

MEMBERS = ("worker-0", "worker-1", "worker-2")


def paced(*paces: float) -> Balance:
    return Balance({member: WorkerPace(pace, pace) for member, pace in zip(MEMBERS, paces, strict=False)})


@pytest.mark.parametrize(
    ("paces", "replicas", "steps", "expected"),
    [
        ((1.0, 1.0), 2, 10, (10, 10)),
        ((1.0, 3.0), 2, 10, (15, 5)),
        ((1.0, 1000.0), 2, 10, (19, 1)),
        ((1.0, 1.0, 2.0), 3, 10, (12, 12, 6)),
        ((1.0, 1000.0), 2, 1, (1, 1)),
        ((1.0, 4.0), 4, 10, (11, 11, 10, 8)),  # the fast one hosts three
    ],
)
def test_steps_follow_the_pace_of_the_worker(
    paces: tuple[float, ...], replicas: int, steps: int, expected: tuple[int, ...]
) -> None:
    assert counts_for(paced(*paces), MEMBERS[: len(paces)], replicas, steps) == expected


def test_workers_without_a_replica_get_no_steps() -> None:
    assert sum(counts_for(paced(1.0, 1.0, 1.0), MEMBERS, 2, 5)) == 10


@pytest.mark.parametrize("counts", [(3, 3, 3), (7, 1, 1), (1, 5, 3), (6, 2, 1)])
def test_every_piece_of_a_round_is_one_replicas(counts: tuple[int, ...]) -> None:
    dealt = dealt_pieces(counts)
    assert len(dealt) == sum(counts) // len(counts)
    assert all((bounds[0], bounds[-1]) == (0, len(counts)) and sorted(bounds) == list(bounds) for bounds in dealt)
    taken = [[stop - start for start, stop in itertools.pairwise(bounds)] for bounds in dealt]
    assert tuple(map(sum, zip(*taken, strict=True))) == counts


def test_equal_counts_are_what_there_is_without_uneven() -> None:
    assert dealt_pieces(counts_of((), 4, 3)) == [(0, 1, 2, 3, 4)] * 3


def test_a_shorter_round_keeps_the_proportions_and_leaves_nobody_out() -> None:
    assert counts_of((15, 5), 2, 10) == (15, 5)
    assert counts_of((15, 5), 2, 4) == (6, 2)
    assert counts_of((19, 1), 2, 2) == (3, 1)
    assert counts_of((15, 5), 3, 4) == (4, 4, 4)  # of another number of replicas
