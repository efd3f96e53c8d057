"""Deliberate bugs in the training in rounds, one at a time: the simulator must find each of them within a few runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from shoal.collectives.residuals import Residuals
from shoal.training.local import LocalTraining
from shoal.training.replica_states import ReplicaStates
from shoal.training.replicas import HostedReplicas
from shoal.training.streamed import StreamedTraining

from .elastic import LIMIT, Fault, Plan, play
from .mutants import Mutant, found
from .test_mutants import edit


def kills(seed: int) -> Plan:
    """In the middle of a round."""
    moment = ("step 1", "step 3", "step 5")[seed % 3]
    return Plan(seed, 3, pieces=4, every=2, restarts=0, late=0.1, faults=(Fault("kill", seed % 3, moment, 0.07),))


def kills_of_the_unlike(seed: int) -> Plan:
    return replace(kills(seed), unlike=True)


def kills_among_fragments(seed: int) -> Plan:
    return replace(kills_of_the_unlike(seed), streaming=2)


def kills_in_uneven_rounds(seed: int) -> Plan:
    return replace(kills_of_the_unlike(seed), uneven=True)


def replacements_in_uneven_rounds(seed: int) -> Plan:
    return replace(replacements(seed), every=2, uneven=True, unlike=True)


def replacements(seed: int) -> Plan:
    return Plan(seed, every=1 + seed % 2, restarts=2, late=0.05, faults=(Fault("kill", 1, "step 0"),))


def who_tells_is_in_the_middle_of_a_round(seed: int) -> Plan:
    """The coordinator lets newcomers in where there are too few, whatever the others are doing."""
    return Plan(seed, 3, least=3, every=2, restarts=2, late=0.05, faults=(Fault("kill", 2, "step 1", 0.1),))


def kills_of_two_at_once(seed: int) -> Plan:
    """With both who had a replica's state."""
    faults = tuple(Fault("kill", who, ("step 1", "step 3")[seed % 2], 0.07) for who in (0, 1))
    return Plan(seed, 3, pieces=4, every=2, restarts=0, late=0.1, faults=faults)


def one_stops(seed: int) -> Plan:
    return Plan(seed, late=0.1, every=2, stop_at=2 + seed % 3, stops_on=seed % 3)


EDITS: dict[str, tuple[type[Any], str, str, str, Callable[[int], Plan]]] = {
    "a replica begins every round with a new optimizer": (
        HostedReplicas,
        "_begun",
        "self._start.optimizers if kept is None else kept",
        "[value * 0 for value in self._states.read()]",
        kills,
    ),
    "a replica begins with what the model holds": (
        HostedReplicas,
        "_begun",
        "weights = self._start.weights",
        "weights = [self._engine.read(one).copy() for one in self._variables]",
        kills,
    ),
    "all steps of a round draw the same random numbers": (
        HostedReplicas,
        "step",
        "self._start.seeds.after(number)",
        "self._start.seeds",
        kills,
    ),
    "all rounds draw the same random numbers": (
        LocalTraining,
        "_count",
        "start.seeds.after(len(sizes))",
        "start.seeds",
        kills,
    ),
    "the outer optimizer starts from where the last replica stands": (
        LocalTraining,
        "_count",
        "engine.write(self._touched, start.weights)",
        "pass",
        kills,
    ),
    "a newcomer is not told of the outer optimizer": (
        LocalTraining,
        "take",
        "self._outer.set_state(arrays[count:])",
        "pass",
        replacements,
    ),
    "who tells a newcomer does not put the model back": (
        LocalTraining,
        "give",
        "self._put_back()",
        "pass",
        who_tells_is_in_the_middle_of_a_round,
    ),
    "a round before which somebody stopped counts": (
        LocalTraining,
        "_round",
        "if stopped(exchanged.notes):",
        "if False:",
        one_stops,
    ),
    "a fragment that has come home is not taken": (
        StreamedTraining,
        "_own",
        "self._schedule.before(self._at.step)",
        "None",
        kills_among_fragments,
    ),
    "an epoch ends without its fragments": (
        StreamedTraining,
        "_steps",
        "if self._at.step:",
        "if False:",
        kills_among_fragments,
    ),
    "replicas begin every stretch with the outer weights": (
        StreamedTraining,
        "_begins",
        "self._own(replica, outer)",
        "list(outer)",
        kills_among_fragments,
    ),
    "what replicas have moved to is not kept": (
        HostedReplicas,
        "keep",
        "outside.weights)",
        "self._start.weights)",
        kills_among_fragments,
    ),
    "a fragment counts before it has come home": (
        StreamedTraining,
        "_own",
        "self._schedule.before(self._at.step)",
        "self._schedule.during(self._at.step)",
        kills_among_fragments,
    ),
    "a replica's state is not copied to another host": (
        ReplicaStates,
        "copy",
        "group.copy(self._kept, shares)",
        "pass",
        kills_of_the_unlike,
    ),
    "the copy is of the round before": (
        Residuals,
        "copy",
        "self._arrays(slot, write)",
        "self._arrays(slot, 1 - write)",
        kills_of_the_unlike,
    ),
    "a committed round leaves the copies of the one before": (
        Residuals,
        "copy",
        "self.end(slot)",
        "pass",
        kills_of_the_unlike,
    ),
    "a newcomer deals as if nothing were known": (
        LocalTraining,
        "_deal",
        "self._at.inner if self._uneven",
        "self._at.inner if self._uneven and self._run.me < 'worker-3'",
        replacements_in_uneven_rounds,
    ),
    "a round that is done again is dealt evenly": (
        LocalTraining,
        "_deal",
        "self._at.inner if self._uneven",
        "self._at.inner if self._uneven and len(self._run.worker_group.members) == 3",
        kills_in_uneven_rounds,
    ),
    "replicas draw their own random numbers, not their piece's": (
        LocalTraining,
        "_step",
        "hosted.step(replica, number, piece,",
        "hosted.step(replica, number, replica,",
        kills_in_uneven_rounds,
    ),
    "the counts of a round go to other replicas": (
        LocalTraining,
        "_learn_uneven",
        "self._at.inner = counts",
        "self._at.inner = counts[::-1]",
        kills_in_uneven_rounds,
    ),
    "what was lost with a host is not replaced": (
        ReplicaStates,
        "settle",
        "if not lost:",
        "if True:",
        kills_of_two_at_once,
    ),
    "a committed round leaves the states of the one before": (
        ReplicaStates,
        "commit",
        "self._kept.commit(self._replicas)",
        "self._kept.commit(self._replicas - 1)",
        kills,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_the_mutant_is_found(name):
    *words, plans = EDITS[name]
    mutant = Mutant(partial(lambda patch, words: edit(patch, *words), words=words), plans)
    assert found(mutant, LIMIT) is not None, f"{name} was not found"


@pytest.mark.parametrize("plans", dict.fromkeys(plans for *_, plans in EDITS.values()))
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(4):
        play(plans(seed))
