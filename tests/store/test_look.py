"""Rows that are read beside training."""

from __future__ import annotations

import numpy as np

from shoal.store.batches import Batch
from shoal.store.look import Look
from shoal.store.messages import List, Listed, Pull, Pulled
from shoal.store.placement import ShardView

IDS = np.array([3, 5])
ASKED = Batch(0, -7)


def views(number: int, *primaries: str | None) -> list[ShardView]:
    return [ShardView(number, shard, primary, (), (), 1) for shard, primary in enumerate(primaries)]


def look() -> Look:
    return Look({1: (Pull(1, 0, ASKED, 2), [IDS]), 2: (List(2, 0, 30), [])})


def test_everybody_is_asked_in_the_view_that_is_known_and_again_in_the_next() -> None:
    going_on = look()
    asked = going_on.take_views(views(4, "a", "b", None))
    assert [(one.server, one.message, list(one.beside)) for one in asked] == [("b", Pull(1, 4, ASKED, 2), [IDS])]
    asked = going_on.take_views(views(5, "a", "a", "c"))
    assert [(one.server, one.message.view) for one in asked] == [("a", 5), ("c", 5)]
    assert [one.server for one in going_on.reconnected("c")] == ["c"]


def test_it_is_over_when_all_have_answered_what_was_asked() -> None:
    going_on = look()
    going_on.take_views(views(4, "a", "b", "c"))
    going_on.handle(Pulled(1, 4, Batch(0, 3), 1, {}, 2), [])  # of an update
    going_on.handle(Listed(2, 4, 0, 5, 40), [])  # of another question
    going_on.handle(Pulled(0, 4, ASKED, 1, {}, 2), [])
    assert not going_on.answers
    going_on.handle(Pulled(1, 4, ASKED, 1, {}, 2), [IDS])
    assert not going_on.is_over
    assert [one.server for one in going_on.take_views(views(6, "a", "a", "c"))] == ["c"]
    going_on.handle(Listed(2, 6, 30, 10, 40), [])
    assert going_on.is_over


def test_who_may_not_know_what_was_acknowledged_is_not_asked() -> None:
    going_on = Look({1: (Pull(1, 0, ASKED, 2), [IDS])}, least=7)
    assert going_on.take_views(views(6, "a", "b")) == []
    assert [question.message.view for question in going_on.take_views(views(7, "a", "b"))] == [7]
