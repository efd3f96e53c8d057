"""Rows that are read beside training."""

from __future__ import annotations

import numpy as np

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.row_reads import RowRead
from shoal.store.values.messages import List, Listed, Pull, Pulled

IDS = np.array([3, 5])
ASKED = 7  # the number of the question


def views(number: int, *primaries: str | None) -> Placement:
    held = tuple(ShardView(number, shard, primary, (), (), 1) for shard, primary in enumerate(primaries))
    return Placement(number, (), 1, (1,) * len(held), held)


def look() -> RowRead:
    return RowRead({1: (Pull(1, 0, ASKED, rows=2), [IDS]), 2: (List(2, 0, 30), [])})


def test_everybody_is_asked_in_the_view_that_is_known_and_again_in_the_next() -> None:
    going_on = look()
    asked = going_on.take_view(views(4, "a", "b", None))
    assert [(one.server, one.message, list(one.beside)) for one in asked] == [("b", Pull(1, 4, ASKED, rows=2), [IDS])]
    asked = going_on.take_view(views(5, "a", "a", "c"))
    assert [(one.server, one.message.view) for one in asked] == [("a", 5), ("c", 5)]
    assert [one.server for one in going_on.reconnected("c")] == ["c"]


def test_it_is_over_when_all_have_answered_what_was_asked() -> None:
    going_on = look()
    going_on.take_view(views(4, "a", "b", "c"))
    going_on.hear(Pulled(1, 4, 3, 1, {}, rows=2), [])  # of an update
    going_on.hear(Listed(2, 4, 0, 5, 40), [])  # of another question
    going_on.hear(Pulled(0, 4, ASKED, 1, {}, rows=2), [])
    assert not going_on.answers
    going_on.hear(Pulled(1, 4, ASKED, 1, {}, rows=2), [IDS])
    assert not going_on.is_over
    assert [one.server for one in going_on.take_view(views(6, "a", "a", "c"))] == ["c"]
    going_on.hear(Listed(2, 6, 30, 10, 40), [])
    assert going_on.is_over


def test_who_may_not_know_what_was_acknowledged_is_not_asked() -> None:
    going_on = RowRead({1: (Pull(1, 0, ASKED, rows=2), [IDS])}, least=7)
    assert going_on.take_view(views(6, "a", "b")) == []
    assert [question.message.view for question in going_on.take_view(views(7, "a", "b"))] == [7]
