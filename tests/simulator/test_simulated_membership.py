"""The membership under a seeded simulator: lost, late and repeated messages, kills, pauses, failures."""

from __future__ import annotations

import random
import time

import pytest

from shoal.cluster.membership import GATHERING

from .simulated_run import DEADLINES, TICK, Network, SimulatedRun

BAD = Network(latency=0.02, late=0.02, repeated=0.1, lost_beats=0.2)
SLACK = 2 * TICK + 0.1  # two ticks and some latency


def test_a_run_without_faults_ends_well_and_everyone_hears_it():
    run = SimulatedRun(seed=1, workers=4).play()
    assert run.end.ok
    assert [member.end for member in run.members.values()] == [run.end] * 4
    assert {member.view for member in run.members.values()} == {run.membership.view}


@pytest.mark.parametrize("seed", range(20))
def test_a_bad_network_loses_nobody(seed):
    assert SimulatedRun(seed, workers=4, network=BAD).play().end.ok


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_ends_the_run_at_once_and_names_the_victim(seed):
    run = SimulatedRun(seed, workers=3, steps=50).kill("worker-1", at=4.0).play()
    assert run.end.culprits == ("worker-1",)
    assert "killed by SIGKILL" in run.end.reason
    assert run.over_at is not None
    assert run.over_at - 4.0 < GATHERING + SLACK


def test_a_killed_worker_whose_end_nobody_saw_is_still_named():
    run = SimulatedRun(seed=3, steps=50).kill("worker-2", at=4.0, seen=False).play()
    assert run.end.culprits == ("worker-2",)
    assert "closed its connection" in run.end.reason


@pytest.mark.parametrize("seed", range(20))
def test_a_stopped_worker_is_lost_after_its_silence(seed):
    run = SimulatedRun(seed, steps=100).pause("worker-1", at=4.0, seconds=50.0).play()
    assert run.end.culprits == ("worker-1",)
    assert "is stopped" in run.end.reason
    assert run.over_at is not None
    # Its last beat may be as old as the time between two when it stops.
    assert DEADLINES.silence - DEADLINES.silence / 10 < run.over_at - 4.0 < DEADLINES.silence + GATHERING + SLACK


def test_a_short_pause_loses_nobody():
    assert SimulatedRun(seed=5, steps=50).pause("worker-1", at=4.0, seconds=4.0).play().end.ok


def test_a_worker_that_holds_pythons_lock_but_works_is_not_lost():
    assert SimulatedRun(seed=6, steps=50).hold("worker-1", at=4.0, seconds=30.0).play().end.ok


def test_a_worker_that_works_for_longer_than_its_stall_is_lost():
    run = SimulatedRun(seed=7, steps=50).hold("worker-1", at=4.0, seconds=100.0).play()
    assert run.end.culprits == ("worker-1",)
    assert "is at work" in run.end.reason


def test_a_coordinator_that_was_held_up_blames_nobody():
    assert SimulatedRun(seed=8, steps=60).pause_coordinator(at=4.0, seconds=12.0).play().end.ok


@pytest.mark.parametrize("seed", range(10))
def test_a_machine_that_was_asleep_loses_nobody(seed):
    run = SimulatedRun(seed, steps=60).pause_coordinator(at=4.0, seconds=60.0)
    for id in run.members:
        run.pause(id, at=4.0, seconds=60.0)
    assert run.play().end.ok


def test_one_error_on_all_workers_is_said_once():
    run = SimulatedRun(seed=9, workers=4, steps=50)
    for id in run.members:
        run.fail(id, at=4.0 + run.random.uniform(0.0, 0.2))
    run.play()
    assert run.end.reason.startswith("all 4 workers raised ValueError: boom at step")
    assert set(run.end.culprits) == set(run.members)


@pytest.mark.parametrize("seed", range(10))
def test_the_cause_is_named_even_if_its_consequence_is_heard_first(seed):
    run = SimulatedRun(seed, workers=3, steps=50)
    run.fail("worker-0", at=4.0, error="connection closed", blames=("worker-2",)).kill("worker-2", at=4.1).play()
    assert run.end.culprits == ("worker-2",)
    assert "SIGKILL" in run.end.reason


def test_an_interrupt_ends_the_run_for_everyone():
    run = SimulatedRun(seed=10, steps=50).interrupt(at=4.0).play()
    assert (run.end.code, run.over_at) == (130, 4.0)
    assert all(member.end == run.end for member in run.members.values())


def test_a_worker_that_never_comes_is_named_after_the_start_deadline():
    run = SimulatedRun(seed=11).pause("worker-2", at=0.0, seconds=1000.0)
    run.members["worker-2"].state = "gone"
    run.play()
    assert run.end.culprits == ("worker-2",)
    assert "did not join within 30 s; 2 of 3 came" in run.end.reason


def test_more_than_a_thousand_runs_a_minute_with_any_faults_keep_the_invariants_and_end():
    runs, began = 2000, time.perf_counter()
    for seed in range(runs):
        chance = random.Random(seed)
        workers = chance.randint(1, 5)
        run = SimulatedRun(seed, workers, chance.randint(1, 30), BAD)
        faults = (run.kill, run.fail, run.pause, run.hold)
        victims = [f"worker-{chance.randrange(workers)}" for _ in range(chance.randint(0, 3))]
        for victim in victims:
            fault = chance.choice(faults)
            seconds = (chance.uniform(0.0, 90.0),) if fault in (run.pause, run.hold) else ()
            fault(victim, chance.uniform(0.0, 10.0), *seconds)
        if chance.random() < 0.1:
            run.pause_coordinator(chance.uniform(0.0, 10.0), chance.uniform(0.0, 20.0))
        if chance.random() < 0.1:
            run.interrupt(chance.uniform(0.0, 10.0))
        run.play()
        assert set(run.end.culprits) <= set(victims), run
        if run.end.ok:
            assert all(member.step == member.steps for member in run.members.values()), run
        else:
            assert run.end.culprits or run.end.code == 130, run
    assert runs / (time.perf_counter() - began) > 1000 / 60
