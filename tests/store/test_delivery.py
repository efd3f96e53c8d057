"""One update that all have agreed on reaches every shard, however often it must be pushed."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.store.decisions.delivery import Delivery, Parcel
from shoal.store.decisions.placement import Placement, ShardView
from shoal.store.decisions.requests import Ask
from shoal.store.values.ledger import Provenance
from shoal.store.values.messages import Push, Pushed, RequestRefused, StoreReason
from shoal.store.values.operations import Assignment, Batch, Operation

BATCH = Batch(1, 5)


def view(number: int, shard: int, primary: str | None = "a", origin: int = 1) -> ShardView:
    return ShardView(number, shard, primary, (), (), origin)


def placed(*views: ShardView) -> Placement:
    return Placement(views[0].number, (), 1, (1,) * len(views), views)


def begun(shards: Iterable[int], operation: Operation = BATCH) -> Delivery:
    return Delivery(operation, {shard: Parcel(Provenance(operation, "worker-0", {}), ()) for shard in shards})


def asked(asks: list[Ask]) -> list[tuple[str, int, int]]:
    """Of whom, for which shard, in which view."""
    return [(ask.server, ask.message.shard, ask.message.view) for ask in asks]


def pushed(shard: int, number: int = 1, staleness: int | None = None) -> Pushed:
    return Pushed(shard, number, BATCH, version=3, staleness=staleness)


def test_each_worker_pushes_to_its_own_shards():
    update = Provenance(BATCH, "worker-0", {}, 0.5)
    delivery = Delivery(BATCH, {0: Parcel(update, ("gradients",)), 2: Parcel(update, ("rows",), 7)})
    asks = delivery.take_view(placed(view(1, 0, "a"), view(1, 1, "b"), view(1, 2, "c")))
    assert asks == [Ask("a", Push(0, 1, update), ("gradients",)), Ask("c", Push(2, 1, update, 7), ("rows",))]


def test_it_is_delivered_when_every_shard_has_acknowledged_it():
    delivery = begun({0, 1})
    delivery.take_view(placed(view(1, 0), view(1, 1)))
    delivery.hear(pushed(0))
    delivery.hear(pushed(0))
    assert not delivery.is_over
    delivery.hear(pushed(1))
    assert delivery.is_over


def test_who_has_no_shard_has_delivered():
    delivery = begun(())
    assert delivery.is_over
    assert delivery.take_view(placed(view(1, 0))) == []


def test_a_new_view_is_asked_for_what_is_missing_once():
    delivery = begun({0, 1})
    delivery.take_view(placed(view(1, 0), view(1, 1)))
    delivery.hear(pushed(0))
    after = placed(view(2, 0, "b"), view(2, 1, "b"))
    assert asked(delivery.take_view(after)) == [("b", 1, 2)]
    assert delivery.take_view(after) == []
    assert delivery.take_view(placed(view(1, 0), view(1, 1))) == [], "it is older"


def test_a_shard_without_a_server_waits_for_one():
    delivery = begun({0})
    assert delivery.take_view(placed(view(1, 0, None))) == []
    assert not delivery.is_over
    assert asked(delivery.take_view(placed(view(2, 0, "b", origin=2)))) == [("b", 0, 2)]


def test_a_connection_that_was_made_anew_is_asked_again():
    delivery = begun({0, 1, 2})
    assert delivery.reconnected("a") == [], "nothing is known yet"
    delivery.take_view(placed(view(1, 0, "a"), view(1, 1, "b"), view(1, 2, "a")))
    delivery.hear(pushed(2))
    assert asked(delivery.reconnected("a")) == [("a", 0, 1)]
    assert delivery.reconnected("c") == []


def test_what_a_lost_shard_had_acknowledged_is_pushed_again():
    delivery = begun({0, 1})
    delivery.take_view(placed(view(1, 0), view(1, 1)))
    delivery.hear(pushed(0))
    delivery.hear(pushed(1))
    assert delivery.is_over
    assert asked(delivery.take_view(placed(view(2, 0, "b", origin=2), view(2, 1, "b", origin=1)))) == [("b", 0, 2)]
    assert not delivery.is_over
    delivery.hear(pushed(0, 1))
    assert not delivery.is_over, "that was said before it was lost"
    delivery.hear(pushed(0, 2))
    assert delivery.is_over
    assert delivery.take_view(placed(view(3, 0, "b", origin=2), view(3, 1, "b", origin=1))) == []


def test_an_acknowledgement_of_an_older_view_counts_where_nothing_was_lost():
    delivery = begun({0})
    delivery.take_view(placed(view(1, 0)))
    delivery.take_view(placed(view(2, 0, "b")))
    delivery.hear(pushed(0, 1))
    assert delivery.is_over


def test_the_acknowledgement_of_something_else_is_not_heeded():
    """An assignment and a batch may have the same place."""
    delivery = begun({0})
    delivery.hear(pushed(0))
    assert not delivery.is_over, "it was never asked"
    delivery.take_view(placed(view(1, 0)))
    for operation in (Batch(1, 6), Batch(0, 5), Assignment(0, 1), Assignment(1, 5)):
        delivery.hear(Pushed(0, 1, operation, 3, None))
    delivery.hear(RequestRefused(0, 2, StoreReason.STALE_VIEW, ""))
    assert not delivery.is_over


def test_its_staleness_is_the_largest_that_a_shard_has_seen_and_none_is_invented():
    for told, expected in (((1, 3), 3), ((None, 2), 2), ((None, None), None)):
        delivery = begun({0, 1})
        delivery.take_view(placed(view(1, 0), view(1, 1)))
        for shard, staleness in enumerate(told):
            delivery.hear(pushed(shard, 1, staleness))
        assert delivery.is_over
        assert delivery.staleness == expected


@settings(deadline=None)
@given(st.data())
def test_whatever_is_lost_it_is_over_only_when_every_shard_has_it(data):
    """Against plain shards: some lose what they have in a new view; messages are lost, late, or come twice."""
    shards = data.draw(st.integers(1, 4))
    has = [False] * shards
    origin = [1] * shards
    number = 1
    delivery = begun(range(shards))
    asks = delivery.take_view(placed(*(view(1, shard) for shard in range(shards))))
    answers: list[Pushed] = []
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(("push", "push", "answer", "answer", "view", "reconnect"))):
            case "push" if asks:
                ask = data.draw(st.sampled_from(asks))
                if ask.message.view == number:
                    has[ask.message.shard] = True
                    answers.append(pushed(ask.message.shard, number))
            case "answer" if answers:
                delivery.hear(data.draw(st.sampled_from(answers)))
            case "view":
                number += 1
                for shard in range(shards):
                    if data.draw(st.booleans()):
                        has[shard], origin[shard] = False, number
                asks = delivery.take_view(placed(*(view(number, shard, "a", origin[shard]) for shard in range(shards))))
            case "reconnect":
                asks = delivery.reconnected("a")
        assert all(has) or not delivery.is_over
    number += 1
    for ask in delivery.take_view(placed(*(view(number, shard, "a", origin[shard]) for shard in range(shards)))):
        delivery.hear(pushed(ask.message.shard, number))
    assert delivery.is_over
