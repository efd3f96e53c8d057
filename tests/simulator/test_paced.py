"""Runs with parameter servers, with the product's own client, server and training loop, under the seeded simulator."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from shoal.store.decisions.replica import Replica

from .elastic import LIMIT, Simulation, play
from .paced_plans import SAVING, fault, paced, random_paced, random_setbacks
from .plan import SILENCE, Fault, Plan, random_plan
from .toy import PacedEngine, gradient, updated
from .wrong import Wrong

SEEDS = range(3)


# Each at its own pace -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", range(4))
def test_whatever_happens_every_promise_is_kept(chunk):
    for seed in range(chunk * 25, chunk * 25 + 25):
        play(random_paced(seed))


@pytest.mark.parametrize("chunk", range(2))
def test_a_shard_that_loses_everything_goes_back_and_misses_no_more_than_was_said(chunk):
    runs = [play(random_setbacks(seed)) for seed in range(chunk * 25, chunk * 25 + 25)]
    assert sum(any(run.history.gone.values()) for run in runs) >= 3


def test_one_worker_alone_comes_to_what_one_machine_does(monkeypatch):
    """The samples, the random numbers and the updates, batch after batch, without any of Shoal's loop."""
    computed = []
    piece = PacedEngine.piece

    def remembered(self, part, batch, number, weight):
        computed.append((self.seeds.of_piece(number)[0].tolist(), list(batch)))
        return piece(self, part, batch, number, weight)

    monkeypatch.setattr(PacedEngine, "piece", remembered)
    run = play(paced(1, workers=1, servers=1, replicas=1, bound=1))
    assert sorted(batch for _, (batch,) in computed) == sorted([*range(10), *range(10)])
    for shard in range(2):
        weights, momentum = 1 + shard, 0
        for chance, batch in computed:
            weights, momentum = updated(weights, momentum, gradient(weights, shard, 0, chance, batch))
        assert run.watcher.ends[1][shard] == weights


@pytest.mark.parametrize("bound", [1, 2, None])
@pytest.mark.parametrize("servers", [1, 3])
def test_an_undisturbed_run_has_one_view_and_nobody_lingers(bound, servers):
    run = play(paced(1, servers=servers, replicas=min(2, servers), bound=bound))
    assert run.history.placement.number == 1
    assert sum(run.history.training.clock.observed.values()) == len(run.history.counted) == 20
    assert run.world.time - run.over_at < 1.0


@pytest.mark.parametrize("bound", [1, 3, None])
def test_a_slow_worker_is_waited_for_only_as_far_as_the_bound_says(bound):
    run = play(paced(2, workers=2, bound=bound, slow=20.0, batches=40))
    assert run.history.stalest == bound if bound is not None else run.history.stalest > 5
    assert run.history.training.clock.stalest == run.history.stalest


@pytest.mark.parametrize("seed", SEEDS)
def test_a_takeover_costs_milliseconds(seed):
    """Between the loss of a primary and the next acknowledgement of its shard there are a few messages, no transfer."""
    undisturbed = play(paced(seed, batches=20))
    run = play(paced(seed, batches=20, restarts=0, faults=(fault("kill", "primary", "Order", 31),)))
    assert run.fired == ["kill"]
    assert run.over_at - undisturbed.over_at < 0.3


@pytest.mark.parametrize("seed", SEEDS)
def test_every_server_is_replaced_one_after_another(seed):
    kills = tuple(fault("kill", f"server-{n}", "Push", 40 * (n + 1)) for n in range(3))
    run = play(paced(seed, servers=3, shards=3, epochs=8, restarts=3, late=0.05, faults=kills))
    assert run.fired == ["kill"] * 3
    assert {"server-0", "server-1", "server-2"}.isdisjoint(run.history.placement.servers)


@pytest.mark.parametrize("fences_kill", [True, False])
def test_a_stopped_server_wakes_up_outside(fences_kill):
    pause = fault("pause", "primary", "Order", 30, seconds=SILENCE + 0.3)
    run = play(paced(1, servers=3, epochs=4, late=0.05, fences_kill=fences_kill, faults=(pause,)))
    assert run.fired == ["pause"]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_workers_but_one_are_lost(seed):
    kills = tuple(fault("kill", f"worker-{n}", "Push", 7 + 3 * n + seed) for n in range(3))
    run = play(paced(seed, workers=4, restarts=0, bound=1 + seed % 2, faults=kills))
    assert run.fired == ["kill"] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_is_named_and_healed(seed):
    run = play(paced(seed, epochs=3, faults=(fault("flip", "backup", "Order", 24 + seed, shard=seed % 2),)))
    assert {differs.shard for differs in run.history.differences} == {seed % 2}
    assert any(f"the copy of shard {seed % 2} on server-" in text for text in run.history.said)


def test_servers_that_come_get_their_part():
    comes = (fault("standby", "server", "Push", 20), fault("standby", "server", "Push", 40))
    dawdle = fault("dawdle", "worker-0", "Finish", 30, seconds=2.5)
    run = play(paced(1, shards=4, epochs=4, bound=None, faults=(*comes, dawdle)))
    placement = run.history.placement
    assert [sum(id in view.holders for view in placement.views) for id in placement.servers] == [2, 2, 2, 2]


def test_a_coordinator_dies_again_and_again():
    crashes = tuple(fault("coordinator", mark="written", nth=4 + 5 * n, seconds=0.02) for n in range(12))
    run = play(paced(1, epochs=3, late=0.05, faults=crashes))
    assert len(run.fired) >= 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_dies_together_with_a_server_and_a_worker(seed):
    """Who is gone is found lost by the next one."""
    faults = (
        fault("coordinator", mark="Finish", nth=15 + seed, seconds=0.1),
        fault("kill", "primary", "Finish", 15 + seed, delay=0.01 * seed),
        fault("kill", "worker-1", "Finish", 15 + seed, delay=0.01 * seed),
    )
    run = play(paced(seed, servers=3, epochs=3, restarts=2, late=0.05, faults=faults))
    assert sorted(run.fired) == ["coordinator", "kill", "kill"]
    assert "worker-1" not in [worker.id for worker in run.view.workers]


def test_without_a_coordinator_nobody_waits_for_it_until_there_is_nothing_left_to_do():
    undisturbed = play(paced(1, batches=40))
    run = play(paced(1, batches=40, faults=(fault("coordinator", mark="Grant", nth=20, seconds=0.05),)))
    assert run.fired == ["coordinator"]
    assert run.over_at - undisturbed.over_at < 0.2


@pytest.mark.parametrize("mark", ["written", "ShardsPlaced", "Grant", "EpochOver", "TrainingClosed"])
def test_a_coordinator_dies_before_or_in_the_middle_of_telling(mark):
    """The next one tells what it had to tell, to each of those who should have had it."""
    for nth in (1, 2, 3, 5, 8):
        run = play(paced(nth, restarts=0, faults=(fault("coordinator", mark=mark, nth=nth),)))
        assert len(run.fired) == (nth <= run.told[mark])


@pytest.mark.parametrize("mark", SAVING)
def test_checkpoints_hold_exactly_the_finished_batches_whoever_dies(mark):
    """At any moment of one: who wants it, who writes a part of it, who only computes, who deals; all go on after it."""
    outcomes = Counter()
    for number, who in enumerate(("chief", "worker-1", "primary", "coordinator")):
        save = (fault("save", "chief", "Finish", 4), fault("save", "chief", "Finish", 13))
        kind = "coordinator" if who == "coordinator" else "kill"
        harm = fault(kind, who, mark, 1 + number % 2, delay=0.0005 * number)
        plan = paced(10 * number, servers=3, late=0.05, restarts=2, saves=True, faults=(*save, harm))
        outcomes += play(plan).history.saved
    assert outcomes[True] >= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_an_epoch_that_is_halted_ends_early(seed):
    faults = (fault("halt", "worker-0", "Finish", 4 + seed), fault("kill", "worker-1", "Halt", delay=0.001 * seed))
    run = play(paced(seed, batches=60, restarts=0, faults=faults))
    assert "halt" in run.fired
    assert 60 < len(run.history.applied_at_the_end(0)) < 100


def test_a_worker_that_works_ahead_does_so_in_every_epoch():
    run = play(paced(1, epochs=3, batches=30, bound=None, workers=2))
    assert all(run.history.busiest[f"worker-{worker}", epoch] == 2 for worker in range(2) for epoch in range(3))


def test_a_failing_run_prints_its_seed_and_is_made_smaller(monkeypatch):
    real = Replica._obey
    monkeypatch.setattr(
        Replica, "_obey", lambda self, point, *more: [] if point.version == 7 else real(self, point, *more)
    )
    with pytest.raises(Wrong, match=r"seed 3: ") as wrong:
        play(random_paced(3), limit=15.0)
    assert "Fault(" not in str(wrong.value)


def test_the_same_seed_is_the_same_run():
    def trace(seed: int) -> dict[int, tuple[int, ...]]:
        return Simulation(random_paced(seed)).play(LIMIT).watcher.ends

    assert trace(11) == trace(11) != trace(12)


# All together, on servers -------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
def test_on_servers_all_come_to_the_bits_that_one_machine_does(replicas):
    """The watcher compares every step with the reference."""
    run = play(Plan(1, servers=2, replicas=replicas, bound=0))
    assert len(run.watcher.done) == 3


@pytest.mark.parametrize("chunk", range(2))
def test_on_servers_too_whatever_happens_to_workers_every_promise_is_kept(chunk):
    for seed in range(chunk * 12, chunk * 12 + 12):
        play(dataclasses.replace(random_plan(seed), servers=2, bound=0, parts=1, restarts=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_on_servers_a_server_may_be_lost_at_any_step(seed):
    kill = Fault("kill", f"server-{seed % 2}", f"step {1 + 2 * seed}", 0.01 * seed)
    run = play(Plan(seed, servers=2, bound=0, restarts=1, faults=(kill,)))
    assert run.fired == ["kill"]
    assert len(run.watcher.done) == 3


def test_a_server_keeps_no_results_of_calls_that_its_script_has_passed():
    run = play(Plan(1, servers=2, bound=0))
    kept = {name: script.run.coordinator_link._heard.results.keys() for name, script in run.scripts.items()}
    assert all(call >= 2 for calls in kept.values() for call in calls)
