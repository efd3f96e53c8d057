"""Deliberate bugs of replicas, leases, workers and servers, one at a time: the simulator must find each of them."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.messages import End
from shoal.collectives.group import WorkerGroup
from shoal.store.decisions.delivery import Delivery
from shoal.store.decisions.director import Director, Training
from shoal.store.decisions.director_messages import Grant
from shoal.store.decisions.leases import LeaseBook
from shoal.store.decisions.lost_shard import LostShard
from shoal.store.decisions.placement import Placement, _Draft
from shoal.store.decisions.replica import Give, Replica, ReportReplica
from shoal.store.decisions.staleness import StalenessClock
from shoal.store.decisions.weights_read import WeightsRead
from shoal.store.decisions.worker_state import WorkerState
from shoal.store.links import Linked, Links
from shoal.store.server import Server
from shoal.store.values.ledger import Ledger
from shoal.store.values.messages import Anew, CaughtUp, Order, Point, Push, Transfer, VersionSeen
from shoal.store.values.operations import Batch, Tally
from shoal.training.asynchronous import AsynchronousTraining
from shoal.training.updates import ServedUpdates

from .elastic import play
from .mutants import RUNS, Mutants, found
from .store_plans import (
    all_replaced_before_the_first_step,
    broken_connections,
    computed_again_after_a_takeover,
    finished_in_vain,
    flipped_bits,
    half_acknowledged,
    halted_while_a_server_is_away,
    just_caught_up,
    late_news,
    lost_before_anything_was_supplied,
    lost_between_two_epochs,
    newcomers_and_old_ones,
    not_supplied_at_once,
    paused_primary,
    paused_workers,
    primaries_die,
    pulled_and_lost,
    replaced,
    saves,
    servers_come_at_the_end,
    slow_worker,
    three_replicas,
    torn_backups,
    workers_die,
    workers_die_late,
)

HANGS = 30.0  # seconds, of the simulated kind
MUTANTS = Mutants()


@MUTANTS.shows(workers_die)
def a_batch_that_comes_again_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "has", lambda self, batch: False)


@MUTANTS.shows(paused_workers)
def a_batch_of_a_finished_epoch_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    """And what it pushes is not fenced."""
    real = Replica.handle

    def handle(self: Any, sender: str, message: Any, beside: Any = None) -> Any:
        if isinstance(message, Push) and message.view < self._view.number:
            message = msgspec.structs.replace(message, view=self._view.number)
        return real(self, sender, message, beside)

    patch.setattr(Replica, "handle", handle)
    patch.setattr(Ledger, "has", lambda self, batch: batch.epoch == self.epoch and batch.place in self.batches)


@MUTANTS.shows(primaries_die)
def a_push_is_acknowledged_before_the_backups_have_applied_it(patch: pytest.MonkeyPatch) -> None:
    real = Replica._have
    patch.setattr(Replica, "_have", lambda self, peers, version: real(self, set(peers) - self._counted, version))


@MUTANTS.shows(pulled_and_lost)
def the_primary_applies_first_and_shows_it(patch: pytest.MonkeyPatch) -> None:
    """It still acknowledges only what the backups have."""
    push, progress = Replica._push, Replica._progress

    def applied_at_once(self: Any, sender: str, message: Any, gradients: Any) -> Any:
        if self.ledger.has(message.update.operation) and message.update.operation in self.__dict__.get("early", ()):
            return []
        return push(self, sender, message, gradients)

    def commit_all(self: Any) -> Any:
        early = self.__dict__.setdefault("early", {})
        decisions = []
        while self._queue:
            ordered = self._queue.pop(0)
            *applied, acknowledged = self._commit(ordered)
            early[ordered.update.operation] = (ordered.point.version, acknowledged)
            decisions += [*(self._order(peer, ordered) for peer in self._following), *applied]
        for batch, (version, acknowledged) in list(early.items()):
            if self._have(self._counted, version):
                decisions.append(acknowledged)
                del early[batch]
        return decisions + progress(self)

    patch.setattr(Replica, "_push", applied_at_once)
    patch.setattr(Replica, "_progress", commit_all)


@MUTANTS.shows(paused_primary)
def messages_of_older_views_are_taken(patch: pytest.MonkeyPatch) -> None:
    real = Replica.handle

    def handle(self: Any, sender: str, message: Any, beside: Any = None) -> Any:
        if message.view < self._view.number:
            message = msgspec.structs.replace(message, view=self._view.number)
            if isinstance(message, Order | Transfer | Anew):
                return self._follow(message, beside)
        return real(self, sender, message, beside)

    patch.setattr(Replica, "handle", handle)


@MUTANTS.shows(newcomers_and_old_ones, seed=9)
def a_newcomer_is_promoted_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    real = _Draft.__init__

    def init(self: Any, before: Placement, *more: Any) -> None:
        views = tuple(
            msgspec.structs.replace(v, backups=(*v.backups, *v.newcomers), newcomers=()) for v in before.views
        )
        real(self, msgspec.structs.replace(before, views=views), *more)

    patch.setattr(_Draft, "__init__", init)


@MUTANTS.shows(just_caught_up, seed=23)
def a_newcomer_is_reported_before_it_counts(patch: pytest.MonkeyPatch) -> None:
    """Everything that was acknowledged is on it at that moment; but not what is acknowledged a moment later."""
    real = Replica._progress

    def progress(self: Any) -> Any:
        decisions = real(self)
        level = {peer for peer in self._view.newcomers if self._have({peer}, self.point.version)} - self._caught_up
        self._caught_up |= level
        return decisions + [ReportReplica(CaughtUp(self.shard, self._view.number, peer)) for peer in level]

    patch.setattr(Replica, "_count_newcomers", lambda self: None)
    patch.setattr(Replica, "_progress", progress)


@MUTANTS.shows(just_caught_up, seed=17)
def a_newcomer_does_not_get_the_updates_since_its_transfer(patch: pytest.MonkeyPatch) -> None:
    real = Replica._bring_along

    def bring_along(self: Any, peer: str, point: Point) -> Any:
        decisions = real(self, peer, point)
        return decisions[:1] if isinstance(decisions[0], Give) else decisions

    patch.setattr(Replica, "_bring_along", bring_along)


@MUTANTS.shows(computed_again_after_a_takeover)
def a_transfer_goes_without_the_ledger(patch: pytest.MonkeyPatch) -> None:
    real = Replica._load

    def load(self: Any, point: Point, ledger: Ledger, state: Any) -> Any:
        return real(self, point, msgspec.structs.replace(ledger, batches=Tally()), state)

    patch.setattr(Replica, "_load", load)


@MUTANTS.shows(torn_backups, seed=5)
def a_version_alone_names_a_state(patch: pytest.MonkeyPatch) -> None:
    def after(self: Any, point: Point) -> Any:
        history = [self.point.version, *(ordered.point.version for ordered in self._queue)]
        return self._queue[history.index(point.version) :] if point.version in history else None

    patch.setattr(Replica, "_after", after)


@MUTANTS.shows(torn_backups)
def who_is_ahead_is_not_overwritten(patch: pytest.MonkeyPatch) -> None:
    real = Replica._load

    def load(self: Any, point: Point, ledger: Ledger, state: Any) -> Any:
        return [self._confirm()] if point.version < self.point.version else real(self, point, ledger, state)

    patch.setattr(Replica, "_load", load)


@MUTANTS.shows(broken_connections)
def an_order_that_comes_again_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    def obey(self: Any, point: Point, update: Any, gradients: Any) -> Any:
        return [*self._apply(point, update, gradients), self._confirm()]

    patch.setattr(Replica, "_obey", obey)


@MUTANTS.shows(broken_connections)
def a_gap_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    real = Replica._obey

    def obey(self: Any, point: Point, *more: Any) -> Any:
        if point.version > self.point.version + 1:
            self.point = Point(point.view, point.version - 1)
        return real(self, point, *more)

    patch.setattr(Replica, "_obey", obey)


@MUTANTS.shows(broken_connections)
def a_worker_does_not_ask_again_after_a_broken_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WeightsRead, "reconnected", lambda self, server: [])
    patch.setattr(Delivery, "reconnected", lambda self, server: [])


@MUTANTS.shows(flipped_bits)
def a_replica_that_differs_is_not_healed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_heal", lambda self, *more: [])


@MUTANTS.shows(workers_die)
def a_batch_is_counted_as_often_as_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """The number is counted, whichever they are."""
    real = LeaseBook.acknowledge

    def acknowledge(self: Any, batch: Batch) -> bool:
        if batch.epoch == self.epoch and batch.place in self.counted:
            left = [place for place in range(self.batches) if place not in self.counted]
            self.counted = self.counted.plus(left[0]) if left else self.counted
        return real(self, batch)

    patch.setattr(LeaseBook, "acknowledge", acknowledge)


@MUTANTS.shows(workers_die)
def a_lost_workers_leases_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseBook, "lost", lambda self, worker: ())
    patch.setattr(LeaseBook, "expire", lambda self, now: ())


@MUTANTS.shows(slow_worker)
def an_epoch_begins_before_the_last_is_over(patch: pytest.MonkeyPatch) -> None:
    def all_are_dealt(self: LeaseBook) -> bool:
        return self.dealt == self.batches and (self.epoch == 0 or len(self.counted) == self.batches)

    patch.setattr(LeaseBook, "is_over", property(all_are_dealt))


@MUTANTS.shows(workers_die)
def a_lost_worker_blocks_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StalenessClock, "lose", lambda self, worker: None)


@MUTANTS.shows(slow_worker)
def the_bound_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    real = StalenessClock.waits_for

    def waits_for(self: StalenessClock, worker: str) -> Any:
        assert self.bound is not None
        self.bound += 1
        try:
            return real(self, worker)
        finally:
            self.bound -= 1

    patch.setattr(StalenessClock, "waits_for", waits_for)


@MUTANTS.shows(slow_worker)
def a_workers_own_updates_make_it_stale(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.staleness
    patch.setattr(Ledger, "staleness", lambda self, update: real(self, msgspec.structs.replace(update, worker="")))


@MUTANTS.shows(paused_workers)
def a_lost_worker_makes_no_new_view(patch: pytest.MonkeyPatch) -> None:
    real = Director._next_view

    def next_view(self: Any, training: Training, before: Placement, lost: Any = ()) -> Any:
        if self._present(training) != list(before.servers) or not before.is_settled:
            return real(self, training, before, lost)
        return self._publish(training, before, lost)

    patch.setattr(Director, "_next_view", next_view)


@MUTANTS.shows(half_acknowledged)
def what_was_acknowledged_before_a_shard_went_back_is_not_pushed_again(patch: pytest.MonkeyPatch) -> None:
    real = Delivery.take_view

    def take_view(self: Any, placement: Placement) -> Any:
        views = tuple(msgspec.structs.replace(view, origin=1) for view in placement.views)
        return real(self, msgspec.structs.replace(placement, views=views))

    patch.setattr(Delivery, "take_view", take_view)


@MUTANTS.shows(late_news)
def a_batch_counts_although_a_shard_has_gone_back_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "keeps", lambda self, view: True)


@MUTANTS.shows(three_replicas, seed=6)
def a_new_primary_answers_before_its_backups_stand_where_it_stands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_answers", property(lambda self: True))


@MUTANTS.shows(broken_connections)
def nobody_says_where_it_stands_after_a_broken_connection(patch: pytest.MonkeyPatch) -> None:
    real = Replica.reconnected

    def reconnected(self: Any, peer: str) -> Any:
        known = self.__dict__.setdefault("known", set())
        if peer in known:
            return []
        known.add(peer)
        return real(self, peer)

    patch.setattr(Replica, "reconnected", reconnected)


@MUTANTS.shows(replaced)
def nobody_says_where_it_stands_when_it_is_connected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "reconnected", lambda self, peer: [])


@MUTANTS.shows(finished_in_vain)
def a_worker_begins_again_what_it_was_granted_before(patch: pytest.MonkeyPatch) -> None:
    """The grant is told again, because its Want is; that it is finished comes only after that."""
    real = WorkerState.read

    def read(self: Any, message: Any) -> Any:
        if isinstance(message, Grant):
            self._wanted.add(message.turn)
        return real(self, message)

    patch.setattr(WorkerState, "read", read)


# Of the shells, which only a simulator that runs them can find --------------------------------------------


@MUTANTS.shows(broken_connections)
def a_broken_connection_is_not_made_again(patch: pytest.MonkeyPatch) -> None:
    real = Links._lose

    def lose(self: Any, peer: str) -> None:
        self._wanted.pop(peer, None)
        real(self, peer)

    patch.setattr(Links, "_lose", lose)


@MUTANTS.shows(broken_connections)
def nobody_is_told_of_a_connection_that_was_made_again(patch: pytest.MonkeyPatch) -> None:
    real = Links._add

    def add(self: Any, peer: str, connection: Any) -> None:
        known = self.__dict__.setdefault("known", set())
        real(self, peer, connection)
        if peer in known:
            self._events = deque(event for event in self._events if event != Linked(peer))
        known.add(peer)

    patch.setattr(Links, "_add", add)


@MUTANTS.shows(lost_before_anything_was_supplied)
def what_waits_for_a_shard_is_forgotten_when_it_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Server, "_hear_all", lambda self, waiting: None)


@MUTANTS.shows(not_supplied_at_once)
def who_was_asked_for_a_lost_shard_in_vain_is_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    """Then one is asked that has older weights."""
    patch.setattr(LostShard, "reconnected", lambda self, worker: None)


@MUTANTS.shows(workers_die_late)
def who_came_late_does_not_learn_what_callbacks_remember(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AsynchronousTraining, "_restore_callbacks", lambda self: None)


@MUTANTS.shows(saves)
def updates_before_a_checkpoint_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = AsynchronousTraining._count

    def count(self: Any, updates: int, samples: int) -> None:
        real(self, updates, samples)
        self._before = self._at.trained

    patch.setattr(AsynchronousTraining, "_count", count)


@MUTANTS.shows(lost_between_two_epochs)
def who_is_behind_finds_nobody_when_an_epoch_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerGroup, "start_apart", lambda self, what, is_past: None)


@MUTANTS.shows(late_news)
def whoever_waits_first_supplies_a_lost_shard(patch: pytest.MonkeyPatch) -> None:
    """As it was: with older weights than others have, perhaps."""
    real = LostShard.__init__

    def compare_nothing(self: Any, shard: int, view: int, workers: Any, now: float) -> None:
        real(self, shard, view, (), now)

    patch.setattr(LostShard, "__init__", compare_nothing)


@MUTANTS.shows(late_news)
def a_lost_shard_is_asked_of_who_has_the_oldest_weights(patch: pytest.MonkeyPatch) -> None:
    real = LostShard.hear

    def hear(self: Any, worker: str, seen: VersionSeen) -> None:
        real(self, worker, msgspec.structs.replace(seen, version=-seen.version if seen.version is not None else None))

    patch.setattr(LostShard, "hear", hear)


@MUTANTS.shows(servers_come_at_the_end)
def a_server_does_not_hear_of_a_good_end(patch: pytest.MonkeyPatch) -> None:
    hear, read_with = CoordinatorLink._hear, CoordinatorLink.read_with

    def hear_it_alone(self: Any, message: Any) -> None:
        if isinstance(message, End) and message.ok:
            self._service_feed.leave = lambda news: None
        hear(self, message)

    def read_without_it(self: Any, reader: Any) -> None:
        self._service_feed._stands = lambda: (self.view, self._heard.over)
        read_with(self, reader)

    patch.setattr(CoordinatorLink, "_hear", hear_it_alone)
    patch.setattr(CoordinatorLink, "read_with", read_without_it)


@MUTANTS.shows(halted_while_a_server_is_away)
def a_halted_epoch_does_not_wait_for_who_is_slow(patch: pytest.MonkeyPatch) -> None:
    def expire(self: LeaseBook, now: float) -> Any:
        return self._give_back([place for place, lease in self.leases.items() if lease.until <= now])

    patch.setattr(LeaseBook, "expire", expire)


@MUTANTS.shows(all_replaced_before_the_first_step)
def who_came_late_has_no_weights_for_servers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedUpdates, "took", lambda self: None)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_found(name):
    assert found(MUTANTS[name], HANGS) is not None, f"{name} was not found in {RUNS} runs"


@pytest.mark.parametrize("plans", MUTANTS.plans())
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(4):
        play(plans(seed))
