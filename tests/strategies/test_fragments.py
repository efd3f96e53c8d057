"""Which fragment is exchanged when: a pure schedule, in which nothing is forgotten."""

from __future__ import annotations

import random

import pytest

from shoal.errors import UsageError
from shoal.strategies.fragments import FragmentSchedule, cut
from shoal.strategies.local_sgd import LocalSGD


@pytest.mark.parametrize(("every", "fragments"), [(4, 4), (6, 3), (50, 5), (3, 1)])
def test_every_fragment_is_exchanged_once_in_so_many_steps_and_counts_when_its_stretch_is_over(
    every: int, fragments: int
) -> None:
    schedule, stretch = FragmentSchedule(every, fragments), every // fragments
    exchanged = [schedule.during(step) for step in range(stretch, 5 * every, stretch)]
    assert exchanged[:fragments] == list(range(fragments))
    for first in range(len(exchanged) - fragments + 1):
        assert sorted(exchanged[first : first + fragments], key=str) == list(range(fragments))
    assert schedule.during(0) is schedule.before(0) is schedule.before(stretch) is None
    for step in range(2 * stretch, 5 * every, stretch):
        assert schedule.before(step) == schedule.during(step - stretch)
    for step in range(5 * every):
        assert schedule.during(step) == schedule.during(step - step % stretch), "one for all steps of a stretch"
        assert (step + schedule.left(step)) % stretch == 0
        assert 0 < schedule.left(step) <= stretch


@pytest.mark.parametrize("seed", range(50))
def test_fragments_are_runs_of_all_weights_none_empty_and_about_equal(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 10, 100, 1000)) for _ in range(chance.randint(1, 30))]
    count = chance.randint(1, len(sizes))
    runs = cut(sizes, count)
    assert len(runs) == count
    assert [place for run in runs for place in run] == list(range(len(sizes)))
    assert all(runs)
    equal = [10] * (4 * count)
    assert {len(run) for run in cut(equal, count)} == {4}


def test_more_fragments_than_weights_can_not_be() -> None:
    with pytest.raises(ValueError, match="3 variables can't be cut into 4 fragments"):
        cut([1, 1, 1], 4)


@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_a_number_of_fragments_that_is_none_is_refused(number: object) -> None:
    with pytest.raises(UsageError, match=r"LocalSGD\(streaming=.*\): expected a whole number, at least 1 fragment"):
        LocalSGD(streaming=number)  # type: ignore[arg-type]
