"""Runs with parameter servers under the seeded simulator: no acknowledged update is lost, none is applied twice."""

from __future__ import annotations

import time

import pytest

from shoal.store.replica import Replica

from .history import Wrong
from .plans import SILENCE, Fault, Plan, random_plan, random_setbacks
from .simulation import Simulation, play

SEEDS = range(10)


@pytest.mark.parametrize("chunk", range(8))
def test_whatever_happens_every_promise_is_kept(chunk):
    for seed in range(chunk * 100, chunk * 100 + 100):
        play(random_plan(seed))


@pytest.mark.parametrize("chunk", range(3))
def test_a_shard_that_loses_everything_goes_back_and_misses_no_more_than_was_said(chunk):
    runs = [play(random_setbacks(seed)) for seed in range(chunk * 100, chunk * 100 + 100)]
    assert sum(any(run.watcher.gone.values()) for run in runs) >= 10


@pytest.mark.parametrize("bound", [0, 1, 2, None])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_an_undisturbed_run_has_one_view(bound, servers):
    run = play(Plan(1, servers=servers, replicas=min(2, servers), bound=bound))
    assert run.coordinator.placement.number == 1
    assert sum(run.coordinator.clock.observed.values()) == len(run.coordinator.counted) == 20


@pytest.mark.parametrize("bound", [1, 3, None])
def test_a_slow_worker_is_waited_for_only_as_far_as_the_bound_says(bound):
    run = play(Plan(2, workers=2, bound=bound, slow=20.0, batches=40))
    assert run.watcher.stalest == bound if bound is not None else run.watcher.stalest > 5
    assert run.coordinator.clock.stalest == run.watcher.stalest


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
    assert {"server-0", "server-1", "server-2"}.isdisjoint(run.coordinator.placement.servers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stopped_server_wakes_up_outside_and_comes_back(seed):
    pause = Fault("pause", "primary", "Order", 30 + seed, seconds=SILENCE + 0.1)
    run = play(Plan(seed, servers=3, epochs=12, late=0.05, faults=(pause,)))
    assert run.fired["pause"] == 1
    assert len(run.coordinator.placement.servers) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_all_workers_but_one_are_lost(seed):
    kills = tuple(Fault("kill", f"worker-{n}", "Push", 7 + 3 * n + seed) for n in range(3))
    run = play(Plan(seed, workers=4, restarts=0, bound=seed % 3, faults=kills))
    assert run.fired["kill"] == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_is_named_and_healed(seed):
    run = play(Plan(seed, epochs=3, faults=(Fault("flip", "backup", "Order", 9 + seed, shard=seed % 2),)))
    assert run.fired["flip"] == 1
    assert {differs.shard for differs in run.coordinator.differences} == {seed % 2}


def test_servers_that_come_get_their_part():
    run = play(
        Plan(1, shards=4, epochs=6, faults=(Fault("come", mark="Push", nth=20), Fault("come", mark="Push", nth=40)))
    )
    held = [
        sum(id in view.holders for view in run.coordinator.placement.views) for id in run.coordinator.placement.servers
    ]
    assert held == [2, 2, 2, 2]


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
        return [run.world.processes[view.primary].toys[view.shard].value for view in run.coordinator.placement.views]

    assert trace(11) == trace(11) != trace(12)


def test_thousands_of_runs_a_minute():
    begun = time.process_time()
    for seed in range(100):
        Simulation(random_plan(seed)).play()
    assert time.process_time() - begun < 6.0, "1000 a minute is the least; a quiet core does several times as many"
