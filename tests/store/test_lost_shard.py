"""A shard that no server has: whose weights it goes on from."""

from __future__ import annotations

from shoal.store.decisions.lost_shard import ANSWERS_WITHIN, LostShard, ToWorker
from shoal.store.values.messages import Lacking, Pull, VersionAsked, VersionSeen

WORKERS = ("worker-0", "worker-1", "worker-2")
ASKED, LACKING = VersionAsked(3, 7), Lacking(3, 7)


def everybody(worker: str) -> bool:
    return True


def test_a_lost_shard_is_asked_of_the_worker_with_the_newest_weights():
    lost = LostShard(3, 7, WORKERS, now=0.0)
    assert lost.next(everybody, 0.0) == [ToWorker(worker, ASKED) for worker in WORKERS]
    lost.waiting.append(("worker-0", Pull(3, 7, 0), []))
    lost.hear("worker-0", VersionSeen(3, 7, 4))
    lost.hear("worker-1", VersionSeen(3, 7, 9))
    assert lost.next(everybody, 0.1) == [], "one has not said yet"
    lost.hear("worker-2", VersionSeen(3, 7, None))
    assert lost.next(everybody, 0.1) == [ToWorker("worker-1", LACKING)]
    assert lost.next(everybody, 0.2) == []


def test_who_does_not_supply_is_followed_by_the_one_with_the_next_newest():
    lost = LostShard(3, 7, WORKERS, now=0.0)
    lost.next(everybody, 0.0)
    for worker, version in zip(WORKERS, (4, 9, 6), strict=True):
        lost.hear(worker, VersionSeen(3, 7, version))
    asked = [lost.next(everybody, turn * ANSWERS_WITHIN) for turn in range(4)]
    assert [one.worker for (one,) in asked] == ["worker-1", "worker-2", "worker-0", "worker-1"]


def test_who_was_asked_on_a_connection_that_broke_is_asked_again_and_not_the_next():
    lost = LostShard(3, 7, WORKERS, now=0.0)
    lost.next(everybody, 0.0)
    for worker, version in zip(WORKERS, (4, 9, 6), strict=True):
        lost.hear(worker, VersionSeen(3, 7, version))
    for _ in range(3):
        assert lost.next(everybody, 0.1) == [ToWorker("worker-1", LACKING)]
        lost.reconnected("worker-0")
        assert lost.next(everybody, 0.1) == []
        lost.reconnected("worker-1")


def test_who_does_not_say_its_version_is_not_waited_for_longer_than_a_second():
    lost = LostShard(3, 7, WORKERS, now=0.0)
    lost.next(everybody, 0.0)
    lost.hear("worker-2", VersionSeen(3, 7, 1))
    assert lost.is_comparing
    assert lost.next(everybody, ANSWERS_WITHIN) == [ToWorker("worker-2", LACKING)]
    assert not lost.is_comparing


def test_a_worker_is_asked_once_there_is_a_connection_and_again_on_a_new_one():
    lost, linked = LostShard(3, 7, WORKERS[:1], now=0.0), set[str]()
    assert lost.next(linked.__contains__, 0.0) == []
    linked.add("worker-0")
    for _ in range(2):
        assert lost.next(linked.__contains__, 0.1) == [ToWorker("worker-0", ASKED)]
        assert lost.next(linked.__contains__, 0.1) == []
        lost.reconnected("worker-0")


def test_a_shard_that_never_had_a_state_is_asked_of_whoever_wants_it_first():
    """All workers have what the model begins with."""
    lost = LostShard(3, 7, (), now=0.0)
    assert lost.next(everybody, 0.0) == []
    lost.waiting.append(("worker-1", Pull(3, 7, 0), []))
    assert lost.next(everybody, 0.0) == [ToWorker("worker-1", LACKING)]
