"""When a stack that somebody was asked for is looked at."""

from __future__ import annotations

from shoal.cluster.stacks import AskedStack


def test_a_stack_is_shown_as_soon_as_no_more_of_it_comes_and_no_later_than_agreed():
    asked = AskedStack(until=0.3)
    assert [asked.is_told(size, now) for size, now in ((0, 0.05), (40, 0.1), (90, 0.15), (90, 0.2))] == [
        *(False, False, False, True),
    ]
    silent = AskedStack(until=0.3)
    assert [silent.is_told(0, now) for now in (0.1, 0.2, 0.3)] == [False, False, True]
