"""One update of one worker: what it asks of whom, and what it believes."""

from __future__ import annotations

from shoal.store.batches import Batch
from shoal.store.ledger import Provenance
from shoal.store.messages import Pull, Pulled, Push, Pushed, Reason, Refused
from shoal.store.placement import ShardView
from shoal.store.update import Ask, Compute, Keep, Over, Update

BATCH = Batch(0, 5)


def views(number: int, *primaries: str | None, origins: tuple[int, ...] = (1, 1)) -> list[ShardView]:
    return [ShardView(number, shard, id, (), (), origins[shard]) for shard, id in enumerate(primaries)]


def pulled(shard: int, view: int = 1, **made: int) -> Pulled:
    return Pulled(shard, view, BATCH, 3, made)


def pushed(shard: int, view: int = 1, version: int = 4, staleness: int | None = 0) -> Pushed:
    return Pushed(shard, view, BATCH, version, staleness)


def begun(view: int = 1) -> Update:
    update = Update(BATCH, "w", view, shards=2)
    update.take_views(views(view, "a", "b"))
    return update


def computed(view: int = 1) -> Update:
    update = begun(view)
    for shard in range(2):
        update.handle(pulled(shard, view, x=shard))
    update.computed()
    return update


def test_an_update_pulls_every_shard_computes_pushes_to_every_shard_and_is_over():
    update = Update(BATCH, "w", view=1, shards=2)
    assert update.take_views(views(1, "a", "b")) == [Ask("a", Pull(0, 1, BATCH)), Ask("b", Pull(1, 1, BATCH))]
    assert update.handle(pulled(1, x=2)) == [Keep(1)]
    assert update.handle(pulled(0, x=1)) == [Keep(0), Compute()]
    assert update.computed() == [
        Ask("a", Push(0, 1, Provenance(BATCH, "w", {"x": 1}))),
        Ask("b", Push(1, 1, Provenance(BATCH, "w", {"x": 2}))),
    ]
    assert update.handle(pushed(0, version=7, staleness=1)) == []
    assert update.handle(pushed(1, version=9, staleness=3)) == [Over(1, (7, 9), 3)]


def test_in_a_new_view_the_new_primary_is_asked_for_what_is_unanswered():
    update = begun()
    update.handle(pulled(0))
    assert update.take_views(views(2, "b", "c")) == [Ask("c", Pull(1, 2, BATCH))]
    update = computed()
    update.handle(pushed(1))
    assert update.take_views(views(2, "b", "c")) == [Ask("b", Push(0, 2, Provenance(BATCH, "w", {"x": 0})))]


def test_when_a_connection_is_new_its_server_is_asked_again_and_no_other():
    assert begun().reconnected("b") == [Ask("b", Pull(1, 1, BATCH))]
    assert begun().reconnected("c") == []


def test_nothing_is_asked_in_a_view_before_the_lease():
    """An old primary could answer with weights that lack what the staleness clock takes to be in them."""
    update = Update(BATCH, "w", view=2, shards=2)
    assert update.take_views(views(1, "a", "b")) == []
    assert update.reconnected("a") == []
    assert len(update.take_views(views(2, "a", "b"))) == 2


def test_weights_that_were_pulled_in_another_view_are_not_kept():
    """They may be older than what another update of this worker has seen by now."""
    update = begun()
    update.take_views(views(2, "c", "b"))
    assert update.handle(pulled(0, view=1)) == []
    assert update.handle(pulled(0, view=2)) == [Keep(0)]
    assert update.handle(pulled(0, view=2)) == [], "once is enough"


def test_an_acknowledgement_that_comes_late_still_counts():
    update = computed()
    update.take_views(views(2, "c", "b"))
    update.handle(pushed(0, view=1))
    assert update.handle(pushed(1, view=2)) == [Over(2, (4, 4), 0)]


def test_an_acknowledgement_from_before_the_shard_went_back_does_not_count():
    update = computed()
    update.take_views(views(2, "c", "b", origins=(2, 1)))
    update.handle(pushed(0, view=1))
    assert update.handle(pushed(1, view=1)) == []
    assert update.handle(pushed(0, view=2)) == [Over(2, (4, 4), 0)]


def test_a_shard_that_has_gone_back_to_a_checkpoint_is_pushed_to_again():
    update = computed()
    update.handle(pushed(0))
    asked = update.take_views(views(2, "c", "b", origins=(2, 1)))
    assert [ask.server for ask in asked if isinstance(ask, Ask)] == ["c", "b"]


def test_what_a_shard_has_kept_in_a_new_view_is_not_pushed_again():
    update = computed()
    update.handle(pushed(0))
    asked = update.take_views(views(2, "c", "b"))
    assert [ask.server for ask in asked if isinstance(ask, Ask)] == ["b"]
    assert update.handle(pushed(1, view=2)) == [Over(2, (4, 4), 0)]


def test_a_staleness_that_nobody_remembers_is_not_invented():
    update = computed()
    update.handle(pushed(0, staleness=None))
    assert update.handle(pushed(1, staleness=None)) == [Over(1, (4, 4), None)]


def test_without_a_server_there_is_nobody_to_ask():
    update = Update(BATCH, "w", view=1, shards=2)
    assert update.take_views(views(1, None, "b")) == [Ask("b", Pull(1, 1, BATCH))]


def test_a_refusal_needs_no_answer_and_an_older_view_is_not_heeded():
    update = begun()
    assert update.handle(Refused(0, 2, Reason.STALE_VIEW, "")) == []
    assert update.take_views(views(1, "c", "d")) == []
