"""The weights of all shards: of whom they are asked, and which count."""

from __future__ import annotations

import numpy as np

from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import Ask, KeepNewest
from shoal.store.decisions.weights_read import ReadPurpose, WeightsRead
from shoal.store.values.messages import Pull, Pulled, PullKind, RequestRefused, StoreReason

NUMBER = 5  # of the question


def placed(number: int, *primaries: str | None) -> Placement:
    views = tuple(ShardView(number, shard, id, (), (), 1) for shard, id in enumerate(primaries))
    return Placement(number, (), 1, (1,) * len(views), views)


def pulled(shard: int, view: int = 1, number: int = NUMBER, **made: int) -> Pulled:
    return Pulled(shard, view, number, 3, made)


def begun(purpose: ReadPurpose = ReadPurpose(1)) -> WeightsRead:  # noqa: B008 (a value)
    read = WeightsRead(NUMBER, 2, purpose)
    read.take_view(placed(1, "a", "b"))
    return read


def test_every_shard_is_pulled_once_and_then_it_is_over():
    read = WeightsRead(NUMBER, 2, ReadPurpose(1))
    assert read.take_view(placed(1, "a", "b")) == [Ask("a", Pull(0, 1, NUMBER)), Ask("b", Pull(1, 1, NUMBER))]
    assert read.hear(pulled(1, x=2), ["one"]) == [KeepNewest(1, 3, ["one"])]
    assert not read.is_over
    assert read.hear(pulled(0, x=1), ["nought"]) == [KeepNewest(0, 3, ["nought"])]
    assert read.is_over
    assert read.weights == [["nought"], ["one"]]
    assert read.seen == {0: {"x": 1}, 1: {"x": 2}}


def test_in_a_new_view_the_new_primary_is_asked_for_what_is_unanswered():
    read = begun()
    read.hear(pulled(0), ["w"])
    assert read.take_view(placed(2, "b", "c")) == [Ask("c", Pull(1, 2, NUMBER))]


def test_when_a_connection_is_new_its_server_is_asked_again_and_no_other():
    assert begun().reconnected("b") == [Ask("b", Pull(1, 1, NUMBER))]
    assert begun().reconnected("c") == []


def test_nothing_is_asked_in_a_view_before_the_one_it_was_allowed_in():
    """An old primary could answer with weights that lack what the staleness clock takes to be in them."""
    read = WeightsRead(NUMBER, 2, ReadPurpose(2))
    assert read.take_view(placed(1, "a", "b")) == []
    assert read.reconnected("a") == []
    assert len(read.take_view(placed(2, "a", "b"))) == 2


def test_weights_that_were_pulled_in_another_view_are_not_kept():
    """They may be older than what another update of this worker has seen by now."""
    read = begun()
    read.take_view(placed(2, "c", "b"))
    assert read.hear(pulled(0, view=1), ["old"]) == []
    assert read.hear(pulled(0, view=2), ["new"]) == [KeepNewest(0, 3, ["new"])]
    assert read.hear(pulled(0, view=2), ["again"]) == [], "once is enough"


def test_the_answer_to_another_question_is_not_heeded():
    read = begun()
    assert read.hear(pulled(0, number=NUMBER + 1), ["w"]) == []
    assert read.hear(RequestRefused(0, 2, StoreReason.STALE_VIEW, ""), []) == []
    assert len(read.reconnected("a")) == 1


def test_without_a_server_there_is_nobody_to_ask_and_an_older_view_is_not_heeded():
    read = WeightsRead(NUMBER, 2, ReadPurpose(1))
    assert read.take_view(placed(2, None, "b")) == [Ask("b", Pull(1, 2, NUMBER))]
    assert read.take_view(placed(1, "c", "d")) == []


def test_of_tables_the_rows_are_asked_for_and_no_worker_keeps_them_for_a_server():
    ids = np.array([3, 5])
    read = WeightsRead(NUMBER, 2, ReadPurpose(1, rows={1: ids}))
    assert read.take_view(placed(1, "a", "b")) == [
        Ask("a", Pull(0, 1, NUMBER)),
        Ask("b", Pull(1, 1, NUMBER, rows=2), [ids]),
    ]
    assert read.hear(pulled(1), ["rows"]) == []


def test_averages_are_no_weights_to_go_on_from():
    read = begun(ReadPurpose(1, PullKind.AVERAGES))
    assert read.reconnected("a") == [Ask("a", Pull(0, 1, NUMBER, PullKind.AVERAGES))]
    assert read.hear(pulled(0), ["averages"]) == []
