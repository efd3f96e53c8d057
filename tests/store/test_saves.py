"""What servers write of a checkpoint: who is asked, in which view, and when it is complete or given up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from shoal.store.decisions.placement import Placement
from shoal.store.decisions.replica import Replica
from shoal.store.decisions.requests import Ask
from shoal.store.decisions.saves import Copied, Gathering, NotSaved, Save, SaveQueue, ShardSaved
from shoal.store.values.ledger import Ledger

PLACEMENT = Placement.first(1, ["server-0", "server-1"], 2, [10, 10, 10])
LATER = PLACEMENT.next(2, ["server-0", "server-1"])


def begun() -> tuple[Gathering, list[Ask]]:
    gathering = Gathering(b"draft", 2, itertools.count())
    return gathering, gathering.take_view(PLACEMENT)


def caught_up(placement: Placement) -> Placement:
    for view in placement.views:
        for newcomer in view.newcomers:
            placement = placement.caught_up(placement.number, view.shard, newcomer)
    return placement


# The worker's side --------------------------------------------------------------------------------------


def test_every_primary_is_asked_for_what_it_leads():
    gathering, asks = begun()
    assert sorted(shard for ask in asks for shard in ask.message.shards) == [0, 1, 2]
    assert {ask.server for ask in asks} == {"server-0", "server-1"}
    assert [ask.message.place for ask in asks] == [2, 3]
    for ask in asks:
        assert not gathering.is_copied
        gathering.hear(Copied(ask.message.number))
    assert gathering.is_copied
    assert not gathering.is_over
    for ask in asks:
        gathering.hear(ShardSaved(ask.message.number, ask.server.encode()))
    assert gathering.told == [ask.server.encode() for ask in asks]


def test_what_is_not_answered_is_asked_again_on_a_new_connection():
    gathering, (first, second) = begun()
    gathering.hear(ShardSaved(first.message.number, b""))
    assert gathering.reconnected(first.server) == []
    assert gathering.reconnected(second.server) == [second]


def test_what_is_not_copied_is_asked_for_in_the_next_view():
    gathering, (first, second) = begun()
    gathering.hear(Copied(first.message.number))
    gathering.hear(NotSaved(second.message.number, "it is in view 2", stale=True))
    assert not gathering.is_over
    (again,) = gathering.take_view(LATER)
    assert again.message.view == 2
    assert again.message.shards == second.message.shards
    assert again.message.place not in (first.message.place, second.message.place)
    gathering.hear(ShardSaved(second.message.number, b"of the old question"))
    gathering.hear(ShardSaved(first.message.number, b"one"))
    assert not gathering.is_over
    gathering.hear(ShardSaved(again.message.number, b"two"))
    assert gathering.told == [b"one", b"two"]


def test_it_is_given_up_when_one_who_writes_is_lost():
    gathering, (first, _) = begun()
    gathering.hear(Copied(first.message.number))
    left = [server for server in PLACEMENT.servers if server != first.server]
    assert gathering.take_view(caught_up(PLACEMENT).next(2, left)) == []
    assert gathering.why == f"{first.server} was lost while it wrote"


def test_it_is_given_up_when_a_shard_is_lost_or_a_server_could_not_write():
    gathering, _ = begun()
    gathering.take_view(PLACEMENT.next(2, ["server-2"]))
    assert gathering.why.endswith("was lost")
    gathering, (first, _) = begun()
    gathering.hear(NotSaved(first.message.number, "the disk is full"))
    assert gathering.why == f"{first.server}: the disk is full"


def test_it_is_given_up_when_this_worker_is_taken_for_lost_and_whoever_waits_hears_it():
    gathering, _ = begun()
    assert gathering.outlasts_loss()
    assert gathering.why == "this worker was taken for lost"


# The server's side --------------------------------------------------------------------------------------


class Hand:
    """A shard writer that does as it is told."""

    def __init__(self) -> None:
        self.copied: list[tuple[int, ...]] = []
        self.outcome: bytes | str | None = None

    def copy(self, shards: Mapping[int, Any], place: int, what: bytes) -> str:
        self.copied.append(tuple(shards))
        return ""

    def poll(self) -> bytes | str | None:
        return self.outcome


def save_queue(number: int = 1) -> tuple[SaveQueue, Hand, list[Replica], list[Any]]:
    """Of server-0, which leads two shards in the view of this number."""
    replicas = [Replica(shard, "server-0") for shard in range(2)]
    placement = Placement.first(number, ["server-0"], 1, [10, 10])
    for view, replica in zip(placement.views, replicas, strict=True):
        replica.take_view(view)
        replica.restored(0, Ledger())
    hand, answers = Hand(), []
    return (
        SaveQueue(replicas, lambda shard: None, hand, lambda to, answer: answers.append(answer)),
        hand,
        replicas,
        answers,
    )


def test_shards_are_copied_once_and_the_answer_is_given_as_often_as_it_is_asked_for():
    server, hand, _, answers = save_queue()
    save = Save(7, 1, (0, 1), 2, b"")
    for _ in range(2):
        server.hear("worker-0", save)
        server.look(())
    assert hand.copied == [(0, 1)]
    assert answers == [Copied(7)] * 2
    hand.outcome = b"part"
    server.look(())
    server.hear("worker-0", save)
    assert answers[2:] == [ShardSaved(7, b"part")] * 2


def test_a_server_that_has_not_heard_of_the_view_yet_copies_when_it_has():
    server, hand, replicas, answers = save_queue()
    server.hear("worker-0", Save(0, 2, (0, 1), 2, b""))
    server.look(())
    assert answers == []
    for view, replica in zip(Placement.first(1, ["server-0"], 1, [10, 10]).views, replicas, strict=True):
        replica.take_view(type(view)(2, view.shard, "server-0", (), (), 1))
    server.look(())
    assert answers == [Copied(0)]
    assert hand.copied == [(0, 1)]


def test_what_was_asked_in_an_older_view_is_not_copied():
    server, hand, _, answers = save_queue(number=3)
    server.hear("worker-0", Save(0, 2, (0, 1), 2, b""))
    server.look(())
    assert [answer.stale for answer in answers] == [True]
    assert hand.copied == []


def test_what_a_server_does_not_have_or_still_writes_is_refused():
    server, hand, _, answers = save_queue()
    server.hear("worker-0", Save(0, 1, (0, 1), 2, b""))
    server.look({1})
    assert answers == [NotSaved(0, "shard 1 was lost")]
    server.hear("worker-0", Save(1, 1, (0, 1), 2, b""))
    server.hear("worker-0", Save(2, 1, (0, 1), 3, b""))
    server.look(())
    assert [type(answer) for answer in answers[1:]] == [Copied, NotSaved]
    hand.outcome = "the disk is full"
    server.look(())
    assert answers[-1] == NotSaved(1, "the disk is full")
