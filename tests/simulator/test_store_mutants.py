"""Deliberate bugs of the parameter servers, one at a time: the simulator must find each of them within a few runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.collectives.group import WorkerGroup
from shoal.errors import RunEnded
from shoal.store.decisions.delivery import Delivery
from shoal.store.decisions.director import Director, State, Training, _send
from shoal.store.decisions.director_messages import EpochOver
from shoal.store.decisions.leases import LeaseBook
from shoal.store.decisions.placement import Placement, _Draft
from shoal.store.decisions.replica import Give, Replica, ReportReplica
from shoal.store.decisions.saves import Gathering
from shoal.store.decisions.staleness import StalenessClock
from shoal.store.decisions.weights_read import WeightsRead
from shoal.store.links import Linked, Links
from shoal.store.server import Server
from shoal.store.values.ledger import Ledger
from shoal.store.values.messages import Anew, CaughtUp, Order, Point, Push, Transfer
from shoal.store.values.operations import Batch, Tally
from shoal.training.asynchronous import AsynchronousTraining
from shoal.training.updates import ServedUpdates

from .elastic import Coordinator, Simulation, play
from .paced_plans import fault, paced
from .plan import SILENCE, Fault, Plan
from .wrong import Wrong

RUNS = 40  # within which a mutant must be found
HANGS = 60.0  # seconds, of the simulated kind


# The plans ----------------------------------------------------------------------------------------------


def primaries_die(seed: int) -> Plan:
    """One primary is lost in the middle of a push, on a slow network; then the next."""
    mark = ("Order", "Confirmed", "Pushed", "Push")[seed % 4]
    faults = (fault("kill", "primary", mark, 12 + seed % 5), fault("kill", "primary", mark, 40, shard=1))
    return paced(seed, servers=3, shards=2, late=0.1, restarts=2, bound=None, faults=faults)


def workers_die(seed: int) -> Plan:
    """Half-way through a push, so that another one computes the same batch."""
    kills = (fault("kill", f"worker-{number}", "Push", 9 + 8 * number + seed % 3) for number in range(2))
    return paced(seed, shards=3, late=0.1, restarts=2, faults=tuple(kills))


def paused_primary(seed: int) -> Plan:
    """It wakes up just when it was given up, and goes on with what it had heard in the old view."""
    pause = fault("pause", "primary", "Push", 10 + seed % 9, seconds=SILENCE + 0.02 * (seed % 10))
    return paced(
        seed, servers=3, shards=2, workers=4, late=0.1, bound=None, restarts=0, fences_kill=False, faults=(pause,)
    )


def paused_workers(seed: int) -> Plan:
    """They wake up when the run has gone on without them, and push."""
    pauses = (fault("pause", f"worker-{n}", "Pull", 8 + 5 * n + seed % 5, 0.005, SILENCE + 0.3) for n in range(2))
    return paced(seed, epochs=4, bound=1 + seed % 2, late=0.05, fences_kill=False, faults=tuple(pauses))


def slow_worker(seed: int) -> Plan:
    return paced(seed, workers=3, bound=2, slow=6.0)


def torn_backups(seed: int) -> Plan:
    """One backup has the last update of a lost primary, another has not, and leads."""
    kill = fault("kill", "primary", "Order", 13 + seed % 8)
    return paced(seed, servers=3, replicas=3, shards=1, workers=6, late=0.4, restarts=0, bound=None, faults=(kill,))


def newcomers_and_old_ones(seed: int) -> Plan:
    """The primary is lost when there is both a backup and somebody who is just being brought up."""
    faults = (
        fault("kill", "backup", "Order", 12 + seed % 5),
        fault("kill", "primary", "placed", 2, delay=0.001 * (seed % 5)),
    )
    return paced(seed, servers=4, replicas=3, shards=2, workers=4, late=0.2, bound=None, restarts=0, faults=faults)


def computed_again_after_a_takeover(seed: int) -> Plan:
    """A worker stops when one shard has its push. When its lease has ended, a newcomer leads that shard."""
    faults = (
        fault("break", "primary", "Push of worker-0", 3, seconds=0.3, shard=1, other="worker-0"),
        fault("pause", "worker-0", "Push of worker-0", 3, seconds=0.3),
        fault("kill", "backup", "Push of worker-0", 3, delay=0.02),
        fault("kill", "primary", "Push of worker-0", 3, delay=0.15),
    )
    return paced(seed, servers=4, workers=4, bound=None, restarts=0, faults=faults)


def pulled_and_lost(seed: int) -> Plan:
    """A primary is lost when it has just given weights to somebody."""
    kills = (fault("kill", "primary", "Pulled", 20 + 9 * n + seed % 5, shard=n) for n in range(2))
    return paced(seed, servers=3, workers=4, late=0.3, bound=None, batches=30, restarts=2, faults=tuple(kills))


def just_caught_up(seed: int) -> Plan:
    """The primary is lost when the coordinator has just heard that a newcomer may be promoted."""
    faults = (
        fault("kill", "backup", "Push", 12),
        fault("kill", "primary", "CaughtUp", 2, delay=0.02 + 0.002 * (seed % 4)),
    )
    return paced(seed, servers=3, shards=1, workers=16, late=0.1, bound=None, restarts=1, batches=80, faults=faults)


def broken_connections(seed: int) -> Plan:
    others = ("backup", "worker-1", "backup", "worker-2")
    cuts = (
        fault("break", "primary", "Order", 6 + 9 * n + seed % 5, seconds=0.01, shard=n % 2, other=other)
        for n, other in enumerate(others)
    )
    return paced(seed, late=0.05, repeated=0.2, restarts=0, faults=tuple(cuts))


def flipped_bits(seed: int) -> Plan:
    return paced(seed, epochs=3, late=0.05, faults=(fault("flip", "backup", "Order", 9 + seed % 9, shard=seed % 2),))


def saves(seed: int) -> Plan:
    """Workers want checkpoints; one of them is lost in the middle of it, or the coordinator is."""
    mark = ("AtRest", "Save", "Copied", "AtRest", "written")[seed % 5]
    nth = 8 + seed % 20 if mark == "written" else 1 + seed % 2
    lost = fault("kill", "worker-0", mark, nth) if seed % 2 else fault("coordinator", mark=mark, nth=nth)
    faults = (fault("save", "chief", "Finish", 4 + seed % 3), fault("save", "chief", "Finish", 12), lost)
    return paced(seed, servers=3, shards=3, late=0.2, restarts=1, bound=None, batches=20, saves=True, faults=faults)


def half_acknowledged(seed: int) -> Plan:
    """The only replica of a shard is lost while another shard keeps the workers waiting."""
    faults = (
        fault("pause", "primary", "Push", 17 + seed % 9, seconds=0.2, shard=1),
        fault("kill", "primary", "Push", 17 + seed % 9, delay=0.01),
    )
    return paced(seed, replicas=1, setbacks=True, restarts=2, faults=faults)


def late_news(seed: int) -> Plan:
    """The only replica of a shard is lost, or given up, while the coordinator hears late of what was acknowledged."""
    lost = fault(("kill", "pause")[seed % 2], "primary", "Pushed", 20 + seed % 9, seconds=SILENCE + 0.3)
    return paced(seed, replicas=1, workers=5, late=0.4, bound=None, setbacks=True, restarts=2, faults=(lost,))


def coordinators_die(seed: int) -> Plan:
    """One after the other, before anybody is told, in the middle of telling, and with what it was told."""
    mark = ("written", "Grant", "Finish", "ShardsPlaced", "EpochOver", "Next", "WantWork")[seed % 7]
    first = fault("coordinator", mark=mark, nth=1 + seed % 4, seconds=0.05)
    second = fault("coordinator", mark="Grant", nth=16 + seed % 9, seconds=0.05)
    return paced(seed, bound=1 + seed % 2, slow=6.0, late=0.05, faults=(first, second))


def coordinators_and_workers_die(seed: int) -> Plan:
    """Another worker comes; the coordinator dies when it tells it where things are."""
    faults = (
        fault("kill", f"worker-{seed % 2}", "Finish", 3 + seed % 5),
        fault("coordinator", mark="ShardsPlaced", nth=6 + seed % 12, seconds=0.05),
    )
    return paced(seed, epochs=3, bound=1, late=0.05, slow=3.0, faults=faults)


# The mutants --------------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Mutant, Callable[[int], Plan]]] = {}


def mutant(plans: Callable[[int], Plan]) -> Callable[[Mutant], Mutant]:
    def add(change: Mutant) -> Mutant:
        MUTANTS[change.__name__] = (change, plans)
        return change

    return add


@mutant(workers_die)
def a_batch_that_comes_again_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "has", lambda self, batch: False)


@mutant(paused_workers)
def a_batch_of_a_finished_epoch_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    """And what it pushes is not fenced."""
    real = Replica.handle

    def handle(self: Any, sender: str, message: Any, beside: Any = None) -> Any:
        if isinstance(message, Push) and message.view < self._view.number:
            message = msgspec.structs.replace(message, view=self._view.number)
        return real(self, sender, message, beside)

    patch.setattr(Replica, "handle", handle)
    patch.setattr(Ledger, "has", lambda self, batch: batch.epoch == self.epoch and batch.place in self.batches)


@mutant(primaries_die)
def a_push_is_acknowledged_before_the_backups_have_applied_it(patch: pytest.MonkeyPatch) -> None:
    real = Replica._have
    patch.setattr(Replica, "_have", lambda self, peers, version: real(self, set(peers) - self._counted, version))


@mutant(pulled_and_lost)
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


@mutant(paused_primary)
def messages_of_older_views_are_taken(patch: pytest.MonkeyPatch) -> None:
    real = Replica.handle

    def handle(self: Any, sender: str, message: Any, beside: Any = None) -> Any:
        if message.view < self._view.number:
            message = msgspec.structs.replace(message, view=self._view.number)
            if isinstance(message, Order | Transfer | Anew):
                return self._follow(message, beside)
        return real(self, sender, message, beside)

    patch.setattr(Replica, "handle", handle)


@mutant(newcomers_and_old_ones)
def a_newcomer_is_promoted_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    real = _Draft.__init__

    def init(self: Any, before: Placement, *more: Any) -> None:
        views = tuple(
            msgspec.structs.replace(v, backups=(*v.backups, *v.newcomers), newcomers=()) for v in before.views
        )
        real(self, msgspec.structs.replace(before, views=views), *more)

    patch.setattr(_Draft, "__init__", init)


@mutant(just_caught_up)
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


@mutant(just_caught_up)
def a_newcomer_does_not_get_the_updates_since_its_transfer(patch: pytest.MonkeyPatch) -> None:
    real = Replica._bring_along

    def bring_along(self: Any, peer: str, point: Point) -> Any:
        decisions = real(self, peer, point)
        return decisions[:1] if isinstance(decisions[0], Give) else decisions

    patch.setattr(Replica, "_bring_along", bring_along)


@mutant(computed_again_after_a_takeover)
def a_transfer_goes_without_the_ledger(patch: pytest.MonkeyPatch) -> None:
    real = Replica._load

    def load(self: Any, point: Point, ledger: Ledger, state: Any) -> Any:
        return real(self, point, msgspec.structs.replace(ledger, batches=Tally()), state)

    patch.setattr(Replica, "_load", load)


@mutant(torn_backups)
def a_version_alone_names_a_state(patch: pytest.MonkeyPatch) -> None:
    def after(self: Any, point: Point) -> Any:
        history = [self.point.version, *(ordered.point.version for ordered in self._queue)]
        return self._queue[history.index(point.version) :] if point.version in history else None

    patch.setattr(Replica, "_after", after)


@mutant(torn_backups)
def who_is_ahead_is_not_overwritten(patch: pytest.MonkeyPatch) -> None:
    real = Replica._load

    def load(self: Any, point: Point, ledger: Ledger, state: Any) -> Any:
        return [self._confirm()] if point.version < self.point.version else real(self, point, ledger, state)

    patch.setattr(Replica, "_load", load)


@mutant(broken_connections)
def an_order_that_comes_again_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    def obey(self: Any, point: Point, update: Any, gradients: Any) -> Any:
        return [*self._apply(point, update, gradients), self._confirm()]

    patch.setattr(Replica, "_obey", obey)


@mutant(broken_connections)
def a_gap_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    real = Replica._obey

    def obey(self: Any, point: Point, *more: Any) -> Any:
        if point.version > self.point.version + 1:
            self.point = Point(point.view, point.version - 1)
        return real(self, point, *more)

    patch.setattr(Replica, "_obey", obey)


@mutant(broken_connections)
def a_worker_does_not_ask_again_after_a_broken_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WeightsRead, "reconnected", lambda self, server: [])
    patch.setattr(Delivery, "reconnected", lambda self, server: [])


@mutant(flipped_bits)
def a_replica_that_differs_is_not_healed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_heal", lambda self, *more: [])


@mutant(workers_die)
def a_batch_is_counted_as_often_as_it_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """The number is counted, whichever they are."""
    real = LeaseBook.acknowledge

    def acknowledge(self: Any, batch: Batch) -> bool:
        if batch.epoch == self.epoch and batch.place in self.counted:
            left = [place for place in range(self.batches) if place not in self.counted]
            self.counted = self.counted.plus(left[0]) if left else self.counted
        return real(self, batch)

    patch.setattr(LeaseBook, "acknowledge", acknowledge)


@mutant(workers_die)
def a_lost_workers_leases_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseBook, "lost", lambda self, worker: ())
    patch.setattr(LeaseBook, "expire", lambda self, now: ())


@mutant(slow_worker)
def an_epoch_begins_before_the_last_is_over(patch: pytest.MonkeyPatch) -> None:
    def all_are_dealt(self: LeaseBook) -> bool:
        return self.dealt == self.batches and (self.epoch == 0 or len(self.counted) == self.batches)

    patch.setattr(LeaseBook, "is_over", property(all_are_dealt))


@mutant(workers_die)
def a_lost_worker_blocks_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StalenessClock, "lose", lambda self, worker: None)


@mutant(slow_worker)
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


@mutant(slow_worker)
def a_workers_own_updates_make_it_stale(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.staleness
    patch.setattr(Ledger, "staleness", lambda self, update: real(self, msgspec.structs.replace(update, worker="")))


@mutant(paused_workers)
def a_lost_worker_makes_no_new_view(patch: pytest.MonkeyPatch) -> None:
    real = Director._next_view

    def next_view(self: Any, training: Training, before: Placement, lost: Any = ()) -> Any:
        if self._present(training) != list(before.servers) or not before.is_settled:
            return real(self, training, before, lost)
        return self._publish(training, before, lost)

    patch.setattr(Director, "_next_view", next_view)


@mutant(half_acknowledged)
def what_was_acknowledged_before_a_shard_went_back_is_not_pushed_again(patch: pytest.MonkeyPatch) -> None:
    real = Delivery.take_view

    def take_view(self: Any, placement: Placement) -> Any:
        views = tuple(msgspec.structs.replace(view, origin=1) for view in placement.views)
        return real(self, msgspec.structs.replace(placement, views=views))

    patch.setattr(Delivery, "take_view", take_view)


@mutant(late_news)
def a_batch_counts_although_a_shard_has_gone_back_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "keeps", lambda self, view: True)


# The director's -----------------------------------------------------------------------------------------


def forgets(patch: pytest.MonkeyPatch, forget: Callable[[State, Training], None]) -> None:
    """What is written down lacks something."""
    real = Director.record

    def record(self: Any) -> bytes:
        state = msgspec.msgpack.decode(real(self), type=State)
        if state.training is not None:
            forget(state, state.training)
        return msgspec.msgpack.encode(state)

    patch.setattr(Director, "record", record)


@mutant(coordinators_die)
def the_record_lacks_the_book(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        training.book = LeaseBook(training.opened.batches, training.book.epoch, training.opened.ahead)

    forgets(patch, forget)


@mutant(coordinators_die)
def the_log_lacks_what_was_finished(patch: pytest.MonkeyPatch) -> None:
    real = Director.changes

    def changes(self: Any) -> list[bytes]:
        return [change for change in real(self) if b"Finish" not in change]

    patch.setattr(Director, "changes", changes)


@mutant(coordinators_die)
def the_log_is_read_without_its_last_entry(patch: pytest.MonkeyPatch) -> None:
    real = Director._hear_again
    patch.setattr(Director, "_hear_again", lambda self, changes: real(self, changes[:-1]))


@mutant(coordinators_die)
def the_record_lacks_the_clock(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        training.clock = StalenessClock(training.opened.bound)
        for worker in training.workers:
            training.clock.join(worker)

    forgets(patch, forget)


@mutant(coordinators_die)
def the_record_lacks_what_was_granted(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, lambda state, training: training.granted.clear())


@mutant(coordinators_die)
def the_record_lacks_the_turns(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, lambda state, training: training.turns.clear())


@mutant(coordinators_die)
def it_is_written_down_when_it_was_told(patch: pytest.MonkeyPatch) -> None:
    happen, write_down = Coordinator.happen, Coordinator._write_down

    def tell_first(self: Any, event: Any) -> None:
        happen(self, event)
        if self.alive:
            write_down(self)

    patch.setattr(Coordinator, "_write_down", lambda self: self._sim.mark("written"))
    patch.setattr(Coordinator, "happen", tell_first)


@mutant(coordinators_die)
def one_that_takes_over_reminds_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Director, "_remind", lambda self, members: [])


@mutant(coordinators_and_workers_die)
def one_that_takes_over_reminds_only_who_speaks(patch: pytest.MonkeyPatch) -> None:
    real = Director.__init__

    def init(self: Any, *more: Any) -> None:
        real(self, *more)
        self._remind_at = math.inf

    patch.setattr(Director, "__init__", init)


@mutant(coordinators_die)
def an_answer_is_not_told_again(patch: pytest.MonkeyPatch) -> None:
    real = Director._want
    patch.setattr(Director, "_want", lambda self, *more: real(self, *more) and [])


@mutant(coordinators_die)
def a_want_is_granted_as_often_as_it_is_said(patch: pytest.MonkeyPatch) -> None:
    real = Director._want

    def want(self: Any, training: Training, worker: str, turn: int) -> Any:
        training.turns[worker] = 0
        return real(self, training, worker, turn)

    patch.setattr(Director, "_want", want)


@mutant(workers_die)
def a_lost_worker_still_waits_for_a_grant(patch: pytest.MonkeyPatch) -> None:
    real = Director._lose

    def lose(self: Any, training: Training, worker: str) -> None:
        waiting = list(training.waiting)
        real(self, training, worker)
        training.waiting = waiting

    patch.setattr(Director, "_lose", lose)


@mutant(workers_die)
def a_lost_workers_batches_are_not_given_to_others(patch: pytest.MonkeyPatch) -> None:
    """Not even when its lease ends."""
    patch.setattr(Director, "_lose", lambda self, training, worker: training.clock.lose(worker))
    patch.setattr(Director, "tick", lambda self, now: [])


@mutant(late_news)
def a_finish_counts_whatever_has_become_of_its_view(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Any, training: Training, worker: str, finish: Any) -> None:
        training.clock.finish(worker, finish.number, finish.staleness)
        training.book.acknowledge(finish.batch)

    patch.setattr(Director, "_finish", finish)


@mutant(slow_worker)
def an_epoch_is_over_when_every_batch_is_dealt(patch: pytest.MonkeyPatch) -> None:
    def over(self: Any, training: Training) -> Any:
        book = training.book
        dealt = book.dealt == book.batches
        return [_send(training.workers, EpochOver(training.opened.call, book.epoch))] if dealt else []

    patch.setattr(Director, "_over", over)


@mutant(primaries_die)
def a_lost_server_is_not_missed(patch: pytest.MonkeyPatch) -> None:
    real = Director._present

    def present(self: Any, training: Training) -> Any:
        held = training.placement.servers if training.placement is not None else ()
        return [*held, *(id for id in real(self, training) if id not in held)]

    patch.setattr(Director, "_present", present)


@mutant(workers_die)
def a_late_worker_is_not_told_where_things_are(patch: pytest.MonkeyPatch) -> None:
    real = Director.take

    def take(self: Any, workers: Any, *more: Any) -> Any:
        training = self._state.training
        placed = training is not None and training.placement is not None
        came = placed and set(workers) > set(training.workers)
        wishes = real(self, workers, *more)
        return [] if came else wishes

    patch.setattr(Director, "take", take)


@mutant(saves)
def all_is_said_to_rest_while_something_is_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseBook, "rests", property(lambda self: self.paused and not self.free and not self.is_over))


@mutant(saves)
def the_pause_of_a_lost_worker_never_ends(patch: pytest.MonkeyPatch) -> None:
    real = Director._lose

    def lose(self: Any, training: Training, worker: str) -> None:
        pauses = dict(training.pauses)
        real(self, training, worker)
        training.pauses = pauses
        training.book.paused = bool(pauses)

    patch.setattr(Director, "_lose", lose)


@mutant(saves)
def that_all_rests_is_not_told_again(patch: pytest.MonkeyPatch) -> None:
    real = Director._remind

    def remind(self: Any, members: Any) -> Any:
        return [wish for wish in real(self, members) if b"AtRest" not in wish.content]

    patch.setattr(Director, "_remind", remind)


@mutant(saves)
def a_pause_ends_when_one_server_has_copied(patch: pytest.MonkeyPatch) -> None:
    copied = property(lambda self: any(asked.is_copied for asked in self._asked.values()))
    patch.setattr(Gathering, "is_copied", copied)


# Of the shells, which only a simulator that runs them can find --------------------------------------------


def lost_before_anything_was_supplied(seed: int) -> Plan:
    """The only server of a shard is lost; then so is the worker that is asked for its weights, or the next server."""
    faults = (
        fault("kill", "primary", "Push", 12 + seed % 7),
        fault("kill", f"worker-{seed % 3}", "Lacking", 3 + seed % 2),
        fault("kill", "primary", "Lacking", 5 + seed % 2),
    )
    return paced(seed, servers=3, replicas=1, workers=3, bound=None, setbacks=True, restarts=4, faults=faults)


def lost_between_two_epochs(seed: int) -> Plan:
    """A worker is lost when some have heard that all go on, and others have not."""
    kill = fault("kill", f"worker-{seed % 3}", "Next", 1 + seed % 2, delay=0.0003 * (seed % 5))
    return paced(seed, bound=1, late=0.4, restarts=0, faults=(kill,))


def workers_die_late(seed: int) -> Plan:
    """When callbacks have seen an epoch, so that newcomers must be told."""
    kills = (fault("kill", f"worker-{number}", "Push", 24 + 4 * number + seed % 3) for number in range(2))
    return paced(seed, restarts=2, faults=tuple(kills))


def servers_come_at_the_end(seed: int) -> Plan:
    kill = fault("kill", "backup", "EpochOver", 4 + seed % 6, delay=0.002 * (seed % 4))
    return paced(seed, servers=3, late=0.05, restarts=1, faults=(kill,))


def halted_while_a_server_is_away(seed: int) -> Plan:
    """For longer than a lease."""
    faults = (
        fault("halt", "worker-0", "Finish", 12 + seed % 6),
        fault("pause", "primary", "Halt", delay=0.001 * (seed % 5), seconds=0.4),
    )
    return paced(seed, restarts=0, bound=None, workers=4, faults=faults)


def all_replaced_before_the_first_step(seed: int) -> Plan:
    """All together, on servers: those who have opened the second fit are lost before its first update."""
    kills = tuple(Fault("kill", number, "Open", 0.05 + 0.3 * number, nth=4) for number in range(3))
    return Plan(seed, servers=2, bound=0, least=3, restarts=3, validates=False, faults=kills)


@mutant(broken_connections)
def a_broken_connection_is_not_made_again(patch: pytest.MonkeyPatch) -> None:
    real = Links._lose

    def lose(self: Any, peer: str) -> None:
        self._wanted.pop(peer, None)
        real(self, peer)

    patch.setattr(Links, "_lose", lose)


@mutant(broken_connections)
def nobody_is_told_of_a_connection_that_was_made_again(patch: pytest.MonkeyPatch) -> None:
    real = Links._add

    def add(self: Any, peer: str, connection: Any) -> None:
        known = self.__dict__.setdefault("known", set())
        real(self, peer, connection)
        if peer in known:
            self._events = deque(event for event in self._events if event != Linked(peer))
        known.add(peer)

    patch.setattr(Links, "_add", add)


@mutant(lost_before_anything_was_supplied)
def what_waits_for_a_shard_is_forgotten_when_it_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Server, "_hear_all", lambda self, waiting: None)


@mutant(lost_before_anything_was_supplied)
def only_one_worker_is_asked_for_a_lost_shard(patch: pytest.MonkeyPatch) -> None:
    real = Server._ask_another

    def ask(self: Any, lack: Any) -> None:
        if not lack.asked:
            real(self, lack)

    patch.setattr(Server, "_ask_another", ask)


@mutant(workers_die_late)
def who_came_late_does_not_learn_what_callbacks_remember(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AsynchronousTraining, "_restore_callbacks", lambda self: None)


@mutant(saves)
def updates_before_a_checkpoint_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = AsynchronousTraining._count

    def count(self: Any, updates: int, samples: int) -> None:
        real(self, updates, samples)
        self._before = self._at.trained

    patch.setattr(AsynchronousTraining, "_count", count)


@mutant(lost_between_two_epochs)
def who_is_behind_finds_nobody_when_an_epoch_begins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerGroup, "start_apart", lambda self, what, is_past: None)


@mutant(servers_come_at_the_end)
def a_server_does_not_hear_of_a_good_end(patch: pytest.MonkeyPatch) -> None:
    real = CoordinatorLink._leave_for_reader

    def leave(self: Any, news: Any) -> None:
        if not (isinstance(news, RunEnded) and self._end is not None):
            real(self, news)

    patch.setattr(CoordinatorLink, "_leave_for_reader", leave)
    patch.setattr(CoordinatorLink, "_why_over", lambda self: self._over)


@mutant(halted_while_a_server_is_away)
def a_halted_epoch_does_not_wait_for_who_is_slow(patch: pytest.MonkeyPatch) -> None:
    def expire(self: LeaseBook, now: float) -> Any:
        return self._give_back([place for place, lease in self.leases.items() if lease.until <= now])

    patch.setattr(LeaseBook, "expire", expire)


@mutant(all_replaced_before_the_first_step)
def who_came_late_has_no_weights_for_servers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedUpdates, "took", lambda self: None)


def found(change: Mutant, plans: Callable[[int], Plan]) -> tuple[int, Wrong] | None:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for seed in range(RUNS):
            try:
                Simulation(plans(seed)).play(HANGS)
            except Wrong as wrong:
                return seed, wrong
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_found(name):
    assert found(*MUTANTS[name]) is not None, f"{name} was not found in {RUNS} runs"


@pytest.mark.parametrize("plans", dict.fromkeys(plans for _, plans in MUTANTS.values()))
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(RUNS // 3):
        play(plans(seed))
