"""Replicas that train by themselves, under the seeded simulator: a round is done once, whatever happens to its workers.

What is real: the training in rounds, who hosts which replicas and what is kept of them, and all that test_elastic.py
names. Workers share no memory here; tests/training/test_replica_memory.py has those that do.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from .elastic import DEADLINES, Fault, Plan, Simulation, play, random_plan

SEEDS = range(4)
MOMENTS = ("view 1", "step 0", "step 2", "evaluate", "step 5", "step 8", "done")


def over(plan: Plan) -> Simulation:
    """Plays it; it must end well."""
    sim = play(plan)
    assert sim.watcher.overs[0].ok, f"seed {plan.seed}: {sim.watcher.overs[0].reason}"
    return sim


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_any_number_of_workers_comes_to_the_reference(workers, every):
    sim = over(Plan(1, workers, pieces=4, every=every))
    assert {script.weights for script in sim.scripts.values()} == {sim.watcher.expected[-1][3]}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_kill_at_any_moment_costs_nothing_but_the_worker(moment, who):
    for seed in SEEDS[:2]:
        fault = Fault("kill", who, moment, 0.07 * seed)
        sim = over(Plan(seed, late=0.05, every=2, parts=1 + seed, restarts=0, faults=(fault,)))
        assert set(sim.watcher.lost()) <= {f"worker-{who}"}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_worker_alone_on_its_host_takes_nothing_of_its_replicas_along(moment, who):
    """No other replica's optimizer could stand in for theirs."""
    for seed in SEEDS[:2]:
        fault = Fault("kill", who, moment, 0.07 * seed)
        over(Plan(seed, late=0.05, every=2, restarts=seed, unlike=True, faults=(fault,)))


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_alone_on_their_hosts_are_killed_one_after_another(seed):
    kills = tuple(Fault("kill", who, f"step {1 + 3 * who}", 0.05) for who in (0, 1, 2))
    over(Plan(seed, 4, every=2, restarts=seed % 2, unlike=True, faults=kills))


@pytest.mark.parametrize(("every", "streaming"), [(1, 1), (2, 2), (3, 3), (4, 2), (2, 1)])
@pytest.mark.parametrize("workers", [1, 3])
def test_fragments_that_are_exchanged_meanwhile_come_to_the_reference(workers, every, streaming):
    over(Plan(1, workers, pieces=4, every=every, streaming=streaming, unlike=True))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_kill_while_a_fragment_is_exchanged_costs_nothing(moment, who):
    for seed in SEEDS[:2]:
        fault = Fault("kill", who, moment, 0.07 * seed)
        over(Plan(seed, late=0.05, every=2, streaming=2 - seed, restarts=seed, unlike=True, faults=(fault,)))


@pytest.mark.parametrize("moment", MOMENTS[:-2])
def test_a_worker_that_is_stopped_while_a_fragment_is_exchanged_changes_nothing_when_it_wakes_up(moment):
    pause = Fault("pause", 1, moment, 0.06, seconds=DEADLINES.silence + 3.0)
    over(Plan(3, every=2, streaming=2, restarts=1, unlike=True, fences_kill=False, faults=(pause,)))


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("stop_at", [1, 2, 4])
def test_one_worker_that_stops_among_fragments_stops_it_for_all(who, stop_at):
    over(Plan(stop_at, late=0.1, every=2, streaming=2, unlike=True, stop_at=stop_at, stops_on=who))


@pytest.mark.parametrize("every", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_uneven_steps_come_to_the_reference(workers, every):
    over(Plan(1, workers, pieces=4, every=every, uneven=True, unlike=True))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_kill_in_an_uneven_round_costs_nothing_and_newcomers_take_as_many_steps(moment, who):
    for seed in SEEDS[:2]:
        fault = Fault("kill", who, moment, 0.07 * seed)
        over(Plan(seed, late=0.05, every=2 + seed, restarts=seed, uneven=True, unlike=True, faults=(fault,)))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_but_one_are_killed_at_once_in_the_middle_of_a_round(seed):
    kills = tuple(Fault("kill", who, "step 1", 0.05 + 0.02 * seed) for who in (0, 1, 3))
    assert over(Plan(seed, 4, pieces=8, every=2, restarts=0, faults=kills)).watcher.done == ["worker-2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dead_are_replaced_and_the_newcomer_is_told_everything(seed):
    sim = over(Plan(seed, every=1 + seed % 2, restarts=1, faults=(Fault("kill", 1, "step 0", 0.02 * seed),)))
    assert sim.watcher.newcomers == 1
    assert sim.scripts["worker-3"].weights == sim.watcher.expected[-1][3]


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("stop_at", [2, 4])
def test_one_worker_whose_callbacks_stop_the_fit_stops_it_for_all_and_its_last_round_does_not_count(who, stop_at):
    sim = over(Plan(stop_at, late=0.1, every=2, stop_at=stop_at, stops_on=who))
    assert sorted(sim.watcher.done) == sorted(sim.scripts)
    assert len(sim.watcher.expected) < 9


@pytest.mark.parametrize("moment", MOMENTS[:-2])
def test_a_worker_that_is_stopped_for_too_long_is_fenced_and_changes_nothing_when_it_wakes_up(moment):
    pause = Fault("pause", 1, moment, 0.06, seconds=DEADLINES.silence + 3.0)
    sim = over(Plan(3, every=2, restarts=1, fences_kill=False, faults=(pause,)))
    assert "worker-1" not in sim.watcher.done


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_troubles(start):
    for seed in range(start, start + 10):
        plan = random_plan(seed)
        every = random.Random(f"rounds {seed}").choice((1, 2, 2, 3))
        play(replace(plan, pieces=8 if plan.workers > 4 else 4, every=every, executes=1))
