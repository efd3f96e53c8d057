"""One update that all have agreed on reaches every shard, however often it must be pushed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.store.batches import Batch
from shoal.store.delivery import Delivery
from shoal.store.ledger import Provenance
from shoal.store.messages import Push, Pushed
from shoal.store.placement import ShardView
from shoal.store.update import Ask

BATCH = Batch(1, 5)


def view(number: int, shard: int, primary: str | None = "a", origin: int = 1) -> ShardView:
    return ShardView(number, shard, primary, (), (), origin)


def asked(asks: list[Ask]) -> list[tuple[str, int, int]]:
    """Of whom, for which shard, in which view."""
    return [(ask.server, ask.message.shard, ask.message.view) for ask in asks]


def pushed(shard: int, number: int = 1) -> Pushed:
    return Pushed(shard, number, BATCH, version=3, staleness=None)


def test_each_worker_pushes_to_its_own_shards():
    delivery = Delivery(BATCH, "worker-0", {0, 2}, rate=0.5)
    asks = delivery.take_views([view(1, 0, "a"), view(1, 1, "b"), view(1, 2, "c")])
    update = Provenance(BATCH, "worker-0", {}, 0.5)
    assert asks == [Ask("a", Push(0, 1, update)), Ask("c", Push(2, 1, update))]


def test_it_is_delivered_when_every_shard_has_acknowledged_it():
    delivery = Delivery(BATCH, "worker-0", {0, 1}, None)
    delivery.take_views([view(1, 0), view(1, 1)])
    delivery.handle(pushed(0))
    delivery.handle(pushed(0))
    assert not delivery.is_over
    delivery.handle(pushed(1))
    assert delivery.is_over


def test_who_has_no_shard_has_delivered():
    delivery = Delivery(BATCH, "worker-3", (), None)
    assert delivery.is_over
    assert delivery.take_views([view(1, 0)]) == []


def test_a_new_view_is_asked_for_what_is_missing_once():
    delivery = Delivery(BATCH, "worker-0", {0, 1}, None)
    delivery.take_views([view(1, 0), view(1, 1)])
    delivery.handle(pushed(0))
    after = [view(2, 0, "b"), view(2, 1, "b")]
    assert asked(delivery.take_views(after)) == [("b", 1, 2)]
    assert delivery.take_views(after) == []
    assert delivery.take_views([view(1, 0), view(1, 1)]) == [], "it is older"


def test_a_shard_without_a_server_waits_for_one():
    delivery = Delivery(BATCH, "worker-0", {0}, None)
    assert delivery.take_views([view(1, 0, None)]) == []
    assert not delivery.is_over
    assert asked(delivery.take_views([view(2, 0, "b", origin=2)])) == [("b", 0, 2)]


def test_a_connection_that_was_made_anew_is_asked_again():
    delivery = Delivery(BATCH, "worker-0", {0, 1, 2}, None)
    assert delivery.reconnected("a") == [], "nothing is known yet"
    delivery.take_views([view(1, 0, "a"), view(1, 1, "b"), view(1, 2, "a")])
    delivery.handle(pushed(2))
    assert asked(delivery.reconnected("a")) == [("a", 0, 1)]
    assert delivery.reconnected("c") == []


def test_what_a_lost_shard_had_acknowledged_is_pushed_again():
    delivery = Delivery(BATCH, "worker-0", {0, 1}, None)
    delivery.take_views([view(1, 0), view(1, 1)])
    delivery.handle(pushed(0))
    delivery.handle(pushed(1))
    assert delivery.is_over
    assert asked(delivery.take_views([view(2, 0, "b", origin=2), view(2, 1, "b", origin=1)])) == [("b", 0, 2)]
    assert not delivery.is_over
    delivery.handle(pushed(0, 1))
    assert not delivery.is_over, "that was said before it was lost"
    delivery.handle(pushed(0, 2))
    assert delivery.is_over
    assert delivery.take_views([view(3, 0, "b", origin=2), view(3, 1, "b", origin=1)]) == []


def test_an_acknowledgement_of_an_older_view_counts_where_nothing_was_lost():
    delivery = Delivery(BATCH, "worker-0", {0}, None)
    delivery.take_views([view(1, 0)])
    delivery.take_views([view(2, 0, "b")])
    delivery.handle(pushed(0, 1))
    assert delivery.is_over


@settings(deadline=None)
@given(st.data())
def test_whatever_is_lost_it_is_over_only_when_every_shard_has_it(data):
    """Against plain shards: some lose what they have in a new view; messages are lost, late, or come twice."""
    shards = data.draw(st.integers(1, 4))
    has = [False] * shards
    origin = [1] * shards
    number = 1
    delivery = Delivery(BATCH, "worker-0", range(shards), None)
    asks = delivery.take_views([view(1, shard) for shard in range(shards)])
    answers: list[Pushed] = []
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(("push", "push", "answer", "answer", "view", "reconnect"))):
            case "push" if asks:
                ask = data.draw(st.sampled_from(asks))
                if ask.message.view == number:
                    has[ask.message.shard] = True
                    answers.append(pushed(ask.message.shard, number))
            case "answer" if answers:
                delivery.handle(data.draw(st.sampled_from(answers)))
            case "view":
                number += 1
                for shard in range(shards):
                    if data.draw(st.booleans()):
                        has[shard], origin[shard] = False, number
                asks = delivery.take_views([view(number, shard, "a", origin[shard]) for shard in range(shards)])
            case "reconnect":
                asks = delivery.reconnected("a")
        assert all(has) or not delivery.is_over
    number += 1
    for ask in delivery.take_views([view(number, shard, "a", origin[shard]) for shard in range(shards)]):
        delivery.handle(pushed(ask.message.shard, number))
    assert delivery.is_over
