"""When a host that was lost is tried again."""

from __future__ import annotations

import itertools

from shoal.launch.remote.return_times import FIRST_PAUSE, LONGEST_PAUSE, STEADY, ReturnTimes


def test_a_lost_host_is_tried_after_longer_and_longer_pauses() -> None:
    times, now, tried = ReturnTimes(), 0.0, []
    assert times.lose("b", now) == FIRST_PAUSE
    for _ in range(200):
        now += 1.0
        if times.take_due(now):
            tried.append(now)
            assert not times.take_due(now), "it is being tried already"
            times.fail("b", now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert tried[0] == FIRST_PAUSE
    assert pauses[:3] == [4.0, 8.0, 16.0]
    assert max(pauses) == LONGEST_PAUSE


def test_a_host_that_is_lost_again_soon_after_it_came_back_is_tried_later_than_one_that_stayed() -> None:
    for stayed, pause in ((STEADY / 2, 2 * FIRST_PAUSE), (STEADY, FIRST_PAUSE)):
        times = ReturnTimes()
        times.lose("b", 0.0)
        assert times.take_due(FIRST_PAUSE) == ["b"]
        times.succeed("b", 10.0)
        assert not times.take_due(1000.0), "it is here"
        assert times.lose("b", 10.0 + stayed) == pause


def test_a_host_that_is_not_alike_any_more_is_not_tried() -> None:
    times = ReturnTimes()
    times.lose("b", 0.0)
    times.take_due(10.0)
    times.give_up("b")
    assert not times.take_due(1000.0)
