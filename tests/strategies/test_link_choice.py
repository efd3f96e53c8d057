"""`compress="auto"`: which codec is chosen, given what was measured."""

from __future__ import annotations

import pytest

from shoal.strategies.link_choice import SHARES, LinkNote, choose

CHEAP, DEAR = (0.002, 0.008), (0.2, 0.8)


@pytest.mark.parametrize(
    ("current", "seconds", "costs", "chosen"),
    [
        ("", 0.0, CHEAP, ""),  # shared memory: nothing is waited for
        ("", 0.003, CHEAP, ""),  # not worth it
        ("", 0.02, CHEAP, "bf16"),  # bf16 takes 12 ms, int8 13
        ("", 0.9, CHEAP, "int8"),
        ("", 0.4, DEAR, ""),
        ("", 1.5, DEAR, "bf16"),
        ("int8", 0.234, CHEAP, "int8"),  # that is what 0.9 s have become
        ("int8", 0.0005, CHEAP, ""),  # the link has become fast
        ("bf16", 0.45, CHEAP, "int8"),
        ("bf16", 0.010, CHEAP, "bf16"),
    ],
)
def test_what_pays_is_chosen(current: str, seconds: float, costs: tuple[float, ...], chosen: str) -> None:
    assert choose(current, [LinkNote(seconds, costs)] * 2) == chosen


def test_the_slowest_link_decides_and_nobody_before_all_have_measured() -> None:
    fast, slow = LinkNote(0.0, CHEAP), LinkNote(0.9, CHEAP)
    assert choose("", [fast, slow]) == "int8"
    assert choose("", [slow, None]) == ""
    assert choose("", []) == ""


@pytest.mark.parametrize("cost", [CHEAP, DEAR])
@pytest.mark.parametrize("link", [0.0, 0.001, 0.01, 0.05, 0.3, 2.0])
def test_it_does_not_go_back_and_forth(link: float, cost: tuple[float, ...]) -> None:
    seen = [""]
    for _ in range(6):
        seen.append(choose(seen[-1], [LinkNote(link * SHARES[seen[-1]], cost)]))
    assert seen[-1] == seen[-2] == seen[-3]
