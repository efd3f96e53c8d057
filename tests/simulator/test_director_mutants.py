"""Deliberate bugs of the director and of what is written down, one at a time: the simulator must find each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster.coordinator_service import SendMessage
from shoal.store.decisions.director import Director, State, Training, _send
from shoal.store.decisions.director_messages import EpochOver
from shoal.store.decisions.leases import LeaseBook
from shoal.store.decisions.saves import Gathering
from shoal.store.decisions.staleness import StalenessClock

from .elastic import Coordinator, play
from .mutants import RUNS, Mutants, found
from .store_plans import (
    coordinators_and_servers_die,
    coordinators_and_workers_die,
    coordinators_die,
    halted,
    late_news,
    primaries_die,
    replaced,
    saves,
    slow_worker,
    workers_die,
)

HANGS = 30.0  # seconds, of the simulated kind
MUTANTS = Mutants()


def forgets(patch: pytest.MonkeyPatch, forget: Callable[[State, Training], None]) -> None:
    """What is written down lacks something."""
    real = Director.record

    def record(self: Any) -> bytes:
        state = msgspec.msgpack.decode(real(self), type=State)
        if state.training is not None:
            forget(state, state.training)
        return msgspec.msgpack.encode(state)

    patch.setattr(Director, "record", record)


@MUTANTS.shows(coordinators_die)
def the_record_lacks_the_book(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        training.book = LeaseBook(training.opened.batches, training.book.epoch, training.opened.ahead)

    forgets(patch, forget)


@MUTANTS.shows(coordinators_die)
def the_log_lacks_what_was_finished(patch: pytest.MonkeyPatch) -> None:
    real = Director.changes

    def changes(self: Any) -> list[bytes]:
        return [change for change in real(self) if b"Finish" not in change]

    patch.setattr(Director, "changes", changes)


@MUTANTS.shows(coordinators_die)
def the_log_is_read_without_its_last_entry(patch: pytest.MonkeyPatch) -> None:
    real = Director._hear_again
    patch.setattr(Director, "_hear_again", lambda self, changes: real(self, changes[:-1]))


@MUTANTS.shows(coordinators_die)
def the_record_lacks_the_clock(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        training.clock = StalenessClock(training.opened.bound)
        for worker in training.workers:
            training.clock.join(worker)

    forgets(patch, forget)


@MUTANTS.shows(coordinators_die, seed=495)
def the_record_lacks_what_was_granted(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, lambda state, training: training.granted.clear())


@MUTANTS.shows(coordinators_die)
def the_record_lacks_the_turns(patch: pytest.MonkeyPatch) -> None:
    forgets(patch, lambda state, training: training.turns.clear())


@MUTANTS.shows(coordinators_die, seed=12)
def it_is_written_down_when_it_was_told(patch: pytest.MonkeyPatch) -> None:
    happen, write_down = Coordinator.happen, Coordinator._write_down

    def tell_first(self: Any, event: Any) -> None:
        happen(self, event)
        if self.alive:
            write_down(self)

    patch.setattr(Coordinator, "_write_down", lambda self: self._sim.mark("written"))
    patch.setattr(Coordinator, "happen", tell_first)


@MUTANTS.shows(coordinators_die, seed=3)
def one_that_takes_over_reminds_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Director, "_remind", lambda self, members: [])


@MUTANTS.shows(coordinators_and_workers_die, seed=4)
def one_that_takes_over_reminds_only_who_speaks(patch: pytest.MonkeyPatch) -> None:
    real = Director.__init__

    def init(self: Any, *more: Any) -> None:
        real(self, *more)
        self._remind_at = math.inf

    patch.setattr(Director, "__init__", init)


@MUTANTS.shows(coordinators_die)
def an_answer_is_not_told_again(patch: pytest.MonkeyPatch) -> None:
    real = Director._want
    patch.setattr(Director, "_want", lambda self, *more: real(self, *more) and [])


@MUTANTS.shows(coordinators_die)
def a_want_is_granted_as_often_as_it_is_said(patch: pytest.MonkeyPatch) -> None:
    real = Director._want

    def want(self: Any, training: Training, worker: str, turn: int) -> Any:
        training.turns[worker] = 0
        return real(self, training, worker, turn)

    patch.setattr(Director, "_want", want)


@MUTANTS.shows(workers_die)
def a_lost_worker_still_waits_for_a_grant(patch: pytest.MonkeyPatch) -> None:
    real = Director._lose

    def lose(self: Any, training: Training, worker: str) -> None:
        waiting = list(training.waiting)
        real(self, training, worker)
        training.waiting = waiting

    patch.setattr(Director, "_lose", lose)


@MUTANTS.shows(workers_die)
def a_lost_workers_batches_are_not_given_to_others(patch: pytest.MonkeyPatch) -> None:
    """Not even when its lease ends."""
    patch.setattr(Director, "_lose", lambda self, training, worker: training.clock.lose(worker))
    patch.setattr(Director, "tick", lambda self, now: [])


@MUTANTS.shows(late_news)
def a_finish_counts_whatever_has_become_of_its_view(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Any, training: Training, worker: str, finish: Any) -> None:
        training.clock.finish(worker, finish.number, finish.staleness)
        training.book.acknowledge(finish.batch)

    patch.setattr(Director, "_finish", finish)


@MUTANTS.shows(slow_worker)
def an_epoch_is_over_when_every_batch_is_dealt(patch: pytest.MonkeyPatch) -> None:
    def over(self: Any, training: Training) -> Any:
        book = training.book
        dealt = book.dealt == book.batches
        return [_send(training.workers, EpochOver(training.opened.call, book.epoch))] if dealt else []

    patch.setattr(Director, "_over", over)


@MUTANTS.shows(primaries_die)
def a_lost_server_is_not_missed(patch: pytest.MonkeyPatch) -> None:
    real = Director._present

    def present(self: Any, training: Training) -> Any:
        held = training.placement.servers if training.placement is not None else ()
        return [*held, *(id for id in real(self, training) if id not in held)]

    patch.setattr(Director, "_present", present)


@MUTANTS.shows(workers_die)
def a_late_worker_is_not_told_where_things_are(patch: pytest.MonkeyPatch) -> None:
    real = Director.take

    def take(self: Any, workers: Any, *more: Any) -> Any:
        training = self._state.training
        placed = training is not None and training.placement is not None
        came = placed and set(workers) > set(training.workers)
        wishes = real(self, workers, *more)
        return [] if came else wishes

    patch.setattr(Director, "take", take)


@MUTANTS.shows(saves)
def all_is_said_to_rest_while_something_is_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseBook, "rests", property(lambda self: self.paused and not self.free and not self.is_over))


@MUTANTS.shows(saves)
def the_pause_of_a_lost_worker_never_ends(patch: pytest.MonkeyPatch) -> None:
    real = Director._lose

    def lose(self: Any, training: Training, worker: str) -> None:
        pauses = dict(training.pauses)
        real(self, training, worker)
        training.pauses = pauses
        training.book.paused = bool(pauses)

    patch.setattr(Director, "_lose", lose)


@MUTANTS.shows(saves, seed=10)
def that_all_rests_is_not_told_again(patch: pytest.MonkeyPatch) -> None:
    real = Director._remind

    def remind(self: Any, members: Any) -> Any:
        return [wish for wish in real(self, members) if b"AtRest" not in wish.content]

    patch.setattr(Director, "_remind", remind)


@MUTANTS.shows(saves)
def a_pause_ends_when_one_server_has_copied(patch: pytest.MonkeyPatch) -> None:
    copied = property(lambda self: any(asked.is_copied for asked in self._asked.values()))
    patch.setattr(Gathering, "is_copied", copied)


@MUTANTS.shows(coordinators_and_servers_die)
def the_record_lacks_the_number_of_the_view(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        state.view = 0

    forgets(patch, forget)


@MUTANTS.shows(coordinators_and_servers_die)
def the_record_lacks_who_serves(patch: pytest.MonkeyPatch) -> None:
    """They say it again; but until then they are not there."""
    forgets(patch, lambda state, training: state.serving.clear())


@MUTANTS.shows(halted)
def an_epoch_that_ends_with_a_loss_is_not_said_to_be_over(patch: pytest.MonkeyPatch) -> None:
    real = Director.take

    def take(self: Any, *more: Any) -> Any:
        return [
            wish for wish in real(self, *more) if not (isinstance(wish, SendMessage) and b"EpochOver" in wish.content)
        ]

    patch.setattr(Director, "take", take)


@MUTANTS.shows(replaced)
def a_late_server_gets_nothing(patch: pytest.MonkeyPatch) -> None:
    real = Director._serve

    def serve(self: Any, server: str, call: int) -> Any:
        training = self._state.training
        return real(self, server, call) if training is None or training.placement is None else []

    patch.setattr(Director, "_serve", serve)


@MUTANTS.shows(replaced)
def who_has_caught_up_is_not_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Director, "_caught_up", lambda self, training, placement: [])


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_found(name):
    assert found(MUTANTS[name], HANGS) is not None, f"{name} was not found in {RUNS} runs"


@pytest.mark.parametrize("plans", MUTANTS.plans())
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(4):
        play(plans(seed))
