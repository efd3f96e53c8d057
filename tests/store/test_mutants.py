"""Deliberate bugs, one at a time, that the simulation of the decisions alone finds, and tests/simulator not yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster.coordinator_service import SendMessage
from shoal.store.decisions.director import Director, State, Training
from shoal.store.decisions.director_messages import Grant
from shoal.store.decisions.replica import Replica
from shoal.store.decisions.worker_state import WorkerState

from .history import Wrong
from .plans import Fault, Plan
from .simulation import Simulation, play

RUNS = 40  # within which a mutant must be found


# The plans ----------------------------------------------------------------------------------------------


def primaries_die(seed: int) -> Plan:
    """One primary is lost in the middle of a push, on a slow network; then the next."""
    mark = ("Order", "Confirmed", "Pushed", "Push")[seed % 4]
    faults = (Fault("kill", "primary", mark, 12 + seed % 5), Fault("kill", "primary", mark, 40, shard=1))
    return Plan(seed, servers=3, shards=2, late=0.1, restarts=2, bound=None, faults=faults)


def three_replicas(seed: int) -> Plan:
    """The backups are at different points when their primary is lost; and one stops, before the next is lost too."""
    faults = (
        Fault("kill", "primary", "Order", 14 + seed % 7),
        Fault("pause", "backup", "view", 2, seconds=0.1),
        Fault("kill", "primary", "view", 2, delay=0.02),
    )
    return Plan(seed, servers=3, replicas=3, shards=1, workers=4, late=0.1, restarts=0, bound=None, faults=faults)


def broken_connections(seed: int) -> Plan:
    others = ("backup", "worker-1", "backup", "worker-2")
    cuts = (
        Fault("cut", "primary", "Order", 6 + 9 * n + seed % 5, seconds=0.01, shard=n % 2, other=other)
        for n, other in enumerate(others)
    )
    return Plan(seed, late=0.05, repeated=0.2, restarts=0, faults=tuple(cuts))


def coordinators_and_servers_die(seed: int) -> Plan:
    """A primary is lost while nobody looks, or just after somebody does again."""
    faults = (
        Fault("crash", mark="Grant", nth=4 + seed % 7, seconds=0.05),
        Fault("kill", "primary", "Grant", 4 + seed % 7, delay=0.02 + 0.02 * (seed % 4)),
    )
    return Plan(seed, servers=3, late=0.05, restarts=1, faults=faults)


def finished_in_vain(seed: int) -> Plan:
    """The coordinator does not hear that an update is finished, and a shard that had it loses everything meanwhile."""
    faults = (
        Fault("crash", mark="Finish", nth=4 + seed % 9, delay=0.0002, seconds=0.05),
        Fault("kill", "primary", "Finish", 4 + seed % 9, delay=0.01),
    )
    return Plan(seed, servers=3, replicas=1, workers=3, bound=seed % 2, setbacks=True, restarts=2, faults=faults)


def halted(seed: int) -> Plan:
    """An epoch is to end early, and one that still computes is lost."""
    faults = (
        Fault("halt", "worker-0", "Finish", 2 + seed % 6),
        Fault("kill", "worker-1", "Halt", delay=0.002 * (seed % 5)),
    )
    return Plan(seed, restarts=0, bound=None, slow=0.3, faults=faults)


# The mutants --------------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Mutant, Callable[[int], Plan]]] = {}


def mutant(plans: Callable[[int], Plan]) -> Callable[[Mutant], Mutant]:
    def add(change: Mutant) -> Mutant:
        MUTANTS[change.__name__] = (change, plans)
        return change

    return add


@mutant(three_replicas)
def a_new_primary_answers_before_its_backups_stand_where_it_stands(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_answers", property(lambda self: True))


@mutant(broken_connections)
def nobody_says_where_it_stands_after_a_broken_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "reconnected", lambda self, peer: [])


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


@mutant(coordinators_and_servers_die)
def the_record_lacks_the_number_of_the_view(patch: pytest.MonkeyPatch) -> None:
    def forget(state: State, training: Training) -> None:
        state.view = 0

    forgets(patch, forget)


@mutant(coordinators_and_servers_die)
def the_record_lacks_who_serves(patch: pytest.MonkeyPatch) -> None:
    """They say it again; but until then they are not there."""
    forgets(patch, lambda state, training: state.serving.clear())


@mutant(finished_in_vain)
def a_worker_begins_again_what_it_was_granted_before(patch: pytest.MonkeyPatch) -> None:
    """The grant is told again, because its Want is; that it is finished comes only after that."""
    real = WorkerState.read

    def read(self: Any, message: Any) -> Any:
        if isinstance(message, Grant):
            self._wanted.add(message.turn)
        return real(self, message)

    patch.setattr(WorkerState, "read", read)


@mutant(halted)
def an_epoch_that_ends_with_a_loss_is_not_said_to_be_over(patch: pytest.MonkeyPatch) -> None:
    real = Director.take

    def take(self: Any, *more: Any) -> Any:
        return [
            wish for wish in real(self, *more) if not (isinstance(wish, SendMessage) and b"EpochOver" in wish.content)
        ]

    patch.setattr(Director, "take", take)


@mutant(primaries_die)
def a_late_server_gets_nothing(patch: pytest.MonkeyPatch) -> None:
    real = Director._serve

    def serve(self: Any, server: str, call: int) -> Any:
        training = self._state.training
        return real(self, server, call) if training is None or training.placement is None else []

    patch.setattr(Director, "_serve", serve)


@mutant(primaries_die)
def who_has_caught_up_is_not_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Director, "_caught_up", lambda self, training, placement: [])


def found(change: Mutant, plans: Callable[[int], Plan]) -> tuple[int, Wrong] | None:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for seed in range(RUNS):
            try:
                Simulation(plans(seed)).play()
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
