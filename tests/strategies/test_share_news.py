"""Which changes of the workers' shares are worth a line."""

from __future__ import annotations

from shoal.strategies.share_news import EVERY, ShareNews

TWO = ("worker-0", "worker-1")


def halves(pieces: int, first: int) -> list[tuple[int, int]]:
    return [(0, first), (first, pieces)]


def test_it_is_told_who_computes_more_and_who_less() -> None:
    news = ShareNews()
    assert [news.of(TWO, halves(8, first), step) for step, first in ((0, 4), (1, 4), (2, 6))] == [
        "",
        "",
        "of 8 pieces worker-0 computes 6, not 4; worker-1 computes 2, not 4: as their speeds are",
    ]


def test_small_changes_and_what_is_told_elsewhere_are_not() -> None:
    news = ShareNews()
    assert news.of(TWO, halves(32, 16), 0) == ""
    assert news.of(TWO, halves(32, 18), 1) == "", "a sixteenth of the pieces"
    assert news.of((*TWO, "worker-2"), [(0, 11), (11, 22), (22, 32)], 2) == "", "the story tells who came"
    assert news.of(TWO, halves(64, 50), 3) == "", "and that there are more pieces"


def test_shares_that_go_to_and_fro_are_told_now_and_then_only() -> None:
    news = ShareNews()
    told = [news.of(TWO, halves(8, 2 + 4 * (step % 2)), step) for step in range(10 * EVERY)]
    assert 5 <= sum(map(bool, told)) <= 11


def test_of_many_workers_those_whose_share_changed_most_are_named() -> None:
    news, members = ShareNews(), tuple(f"worker-{number}" for number in range(64))
    assert news.of(members, [(2 * number, 2 * number + 2) for number in range(64)], 0) == ""
    counts = [1 if number < 32 else 3 for number in range(64)]
    held = [(sum(counts[:number]), sum(counts[: number + 1])) for number in range(64)]
    told = news.of(members, held, 1)
    assert told.count("computes") == 6
    assert "and 58 others" in told
