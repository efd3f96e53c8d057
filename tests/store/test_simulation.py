"""Runs with parameter servers under the seeded simulator: no acknowledged update is lost, none is applied twice."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.store.decisions.replica import Replica

from .history import Wrong
from .plans import SAVING, SILENCE, Fault, Plan, random_plan, random_setbacks
from .simulation import Simulation, play

SEEDS = range(4)


@pytest.mark.parametrize("chunk", range(2))
def test_whatever_happens_every_promise_is_kept(chunk):
    for seed in range(chunk * 100, chunk * 100 + 100):
        play(random_plan(seed))


@pytest.mark.parametrize("chunk", range(1))
def test_a_shard_that_loses_everything_goes_back_and_misses_no_more_than_was_said(chunk):
    runs = [play(random_setbacks(seed)) for seed in range(chunk * 100, chunk * 100 + 100)]
    assert sum(any(run.watcher.gone.values()) for run in runs) >= 10


@pytest.mark.parametrize("bound", [0, 1, 2, None])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_an_undisturbed_run_has_one_view(bound, servers):
    run = play(Plan(1, servers=servers, replicas=min(2, servers), bound=bound))
    assert run.placement.number == 1
    assert sum(run.training.clock.observed.values()) == len(run.coordinator.counted) == 20


@pytest.mark.parametrize("bound", [1, 3, None])
def test_a_slow_worker_is_waited_for_only_as_far_as_the_bound_says(bound):
    run = play(Plan(2, workers=2, bound=bound, slow=20.0, batches=40))
    assert run.watcher.stalest == bound if bound is not None else run.watcher.stalest > 5
    assert run.training.clock.stalest == run.watcher.stalest


@pytest.mark.parametrize("seed", SEEDS)
def test_a_takeover_costs_milliseconds(seed):
    """Between the loss of a primary and the next acknowledgement of its shard there are a few messages, no transfer."""
    undisturbed = play(Plan(seed, batches=20))
    run = play(Plan(seed, batches=20, restarts=0, faults=(Fault("kill", "primary", "Order", 11),)))
    assert run.fired["kill"] == 1
    assert run.world.time - undisturbed.world.time < 0.3


@pytest.mark.parametrize("seed", SEEDS)
def test_every_server_is_replaced_one_after_another(seed):
    kills = tuple(Fault("kill", f"server-{n}", "Push", 30 * (n + 1), shard=n) for n in range(3))
    run = play(Plan(seed, servers=3, shards=3, epochs=4, restarts=3, late=0.05, faults=kills))
    assert run.fired["kill"] == 3
    assert {"server-0", "server-1", "server-2"}.isdisjoint(run.placement.servers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stopped_server_wakes_up_outside_and_comes_back(seed):
    pause = Fault("pause", "primary", "Order", 30 + seed, seconds=SILENCE + 0.1)
    run = play(Plan(seed, servers=3, epochs=12, late=0.05, faults=(pause,)))
    assert run.fired["pause"] == 1
    assert len(run.placement.servers) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_all_workers_but_one_are_lost(seed):
    kills = tuple(Fault("kill", f"worker-{n}", "Push", 7 + 3 * n + seed) for n in range(3))
    run = play(Plan(seed, workers=4, restarts=0, bound=seed % 3, faults=kills))
    assert run.fired["kill"] == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_is_named_and_healed(seed):
    run = play(Plan(seed, epochs=3, faults=(Fault("flip", "backup", "Order", 9 + seed, shard=seed % 2),)))
    assert run.fired["flip"] == 1
    assert {differs.shard for differs in run.differences} == {seed % 2}
    assert any(f"the copy of shard {seed % 2} on server-" in text for text in run.said)


def test_servers_that_come_get_their_part():
    run = play(
        Plan(1, shards=4, epochs=6, faults=(Fault("come", mark="Push", nth=20), Fault("come", mark="Push", nth=40)))
    )
    held = [sum(id in view.holders for view in run.placement.views) for id in run.placement.servers]
    assert held == [2, 2, 2, 2]


@pytest.mark.parametrize("mark", ["written", "ShardsPlaced", "Grant", "EpochOver", "TrainingClosed"])
def test_a_coordinator_dies_before_or_in_the_middle_of_telling(mark):
    """The next one tells what it had to tell: of every letter, and of each of those who should have had it."""
    for nth in range(1, 14):
        run = play(Plan(nth, ahead=2, restarts=0, faults=(Fault("crash", mark=mark, nth=nth),)))
        assert run.fired["crash"] == (nth <= run.told[mark])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_dies_again_and_again(seed):
    crashes = tuple(Fault("crash", mark="written", nth=4 + 5 * n, seconds=0.02) for n in range(12))
    run = play(Plan(seed, epochs=3, ahead=1 + seed % 2, bound=1 + seed % 3, late=0.05, faults=crashes))
    assert run.fired["crash"] >= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_dies_together_with_a_server_and_a_worker(seed):
    """Who is gone is found lost by the next one."""
    faults = (
        Fault("crash", mark="Finish", nth=5 + seed, seconds=0.1),
        Fault("kill", "primary", "Finish", 5 + seed, delay=0.01 * (seed % 3)),
        Fault("kill", "worker-1", "Finish", 5 + seed, delay=0.01 * (seed % 4)),
    )
    run = play(Plan(seed, servers=3, epochs=3, restarts=2, late=0.05, faults=faults))
    assert run.fired == {"crash": 1, "kill": 2}
    assert len(run.placement.servers) == 3
    assert "worker-1" not in run.coordinator.view


def test_without_a_coordinator_nobody_waits_for_it_until_there_is_nothing_left_to_do():
    undisturbed = play(Plan(1, batches=40))
    run = play(Plan(1, batches=40, faults=(Fault("crash", mark="Grant", nth=20, seconds=0.05),)))
    assert run.fired["crash"] == 1
    assert run.world.time - undisturbed.world.time < 0.15


@pytest.mark.parametrize("mark", SAVING)
def test_checkpoints_hold_exactly_the_finished_batches_whoever_dies(mark):
    """At any moment of one: who wants it, who writes a part of it, who only computes, who deals; all go on after it."""
    outcomes = Counter()
    for number, who in enumerate(("worker-0", "worker-1", "primary", "backup", "crash")):
        for nth in (1, 2, 3):
            save = (Fault("save", "worker-0", "Finish", 4), Fault("save", "worker-2", "Finish", 13))
            kind = {"kind": "crash"} if who == "crash" else {"kind": "kill", "who": who}
            fault = Fault(**kind, mark=mark, nth=nth, delay=0.0005 * (nth - 1))
            seed = 10 * number + nth
            run = play(Plan(seed, servers=3, ahead=1 + nth % 2, late=0.05, restarts=2, faults=(*save, fault)))
            assert run.fired["save"] > 0
            outcomes += run.watcher.checkpoints
    assert outcomes[True] >= 15


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pause_at_the_end_of_an_epoch_is_one_at_the_beginning_of_the_next(seed):
    run = play(Plan(seed, faults=(Fault("save", "worker-1", "Finish", 10, delay=0.0002 * seed),)))
    assert run.watcher.checkpoints == {True: 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_epoch_that_is_halted_ends_early(seed):
    faults = (Fault("halt", "worker-0", "Finish", 4 + seed), Fault("kill", "worker-1", "Halt", delay=0.001 * seed))
    run = play(Plan(seed, batches=60, restarts=0, faults=faults))
    assert run.fired["halt"] == 1
    first = sum(batch.epoch == 0 for batch, _ in run.history(shard=0))
    assert 4 + seed <= first < 20 + seed
    assert len(run.history(shard=0)) == first + 60


def test_a_worker_that_works_ahead_does_so_in_every_epoch():
    run = play(Plan(1, epochs=3, batches=30, ahead=2, bound=None, workers=2))
    assert all(run.busiest[f"worker-{worker}", epoch] == 2 for worker in range(2) for epoch in range(3))


def test_a_failing_run_prints_its_seed_and_is_made_smaller(monkeypatch):
    real = Replica._obey

    def forgetful(self, point, *more):
        return [] if point.version == 7 else real(self, point, *more)

    monkeypatch.setattr(Replica, "_obey", forgetful)
    with pytest.raises(Wrong, match=r"seed 3: the run hangs") as wrong:
        play(random_plan(3))
    assert "late=0.0, repeated=0.0, restarts=1, setbacks=False, faults=())" in str(wrong.value)
    assert "Fault(" not in str(wrong.value)


def test_the_same_seed_is_the_same_run():
    def trace(seed: int) -> list[int]:
        run = Simulation(random_plan(seed)).play()
        return [run.world.processes[view.primary].toys[view.shard].value for view in run.placement.views]

    assert trace(11) == trace(11) != trace(12)
