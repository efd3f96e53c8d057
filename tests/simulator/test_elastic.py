"""Elastic runs under the seeded simulator: whatever happens to workers, no step is lost, repeated or different."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from .elastic import DEADLINES, Fault, Plan, Simulation, Wrong, play, random_plan

ALL = bool(os.environ.get("SHOAL_TEST_ALL"))  # `make test-full`


def seeds(few: int, all: int) -> range:
    """Of a scene: as many as show it again and again, or all that it is played with in `make test-full`."""
    return range(all if ALL else few)


SEEDS = seeds(2, 5)
MOMENTS = ("view 1", "step 0", "step 3", "evaluate", "step 5", "step 8", "done")


def over(plan: Plan) -> Simulation:
    """Plays it; it must end well."""
    sim = play(plan)
    assert sim.watcher.overs[0].ok, f"seed {plan.seed}: {sim.watcher.overs[0].reason}"
    return sim


def lost(sim: Simulation) -> set[str]:
    return set(sim.watcher.lost())


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_undisturbed_run_has_one_view_and_ends_with_the_expected_weights(workers):
    sim = over(Plan(1, workers, pieces=4))
    assert len(sim.watcher.views) == 1
    assert {script.weights for script in sim.scripts.values()} == {sim.watcher.expected[-1][3]}
    assert sorted(sim.watcher.done) == sorted(sim.scripts)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bad_network_loses_nobody(seed):
    sim = over(Plan(seed, 4, late=0.1, lost_beats=0.3, repeats=0.2))
    assert not lost(sim)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_kill_at_any_moment_costs_nothing_but_the_worker(moment, who):
    for seed in SEEDS[:2]:
        sim = over(Plan(seed, late=0.05, restarts=0, faults=(Fault("kill", who, moment, 0.004 * seed),)))
        assert lost(sim) <= {f"worker-{who}"}


@pytest.mark.parametrize("delay", [0.0, 0.06, 0.16, *([0.02, 0.11, 0.21] if ALL else [])])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_kill_between_the_parts_of_a_step_costs_nothing_but_the_worker_and_a_newcomer_waits_for_its_end(who, delay):
    for seed in SEEDS[:2]:
        sim = over(Plan(seed, parts=3, late=0.05, restarts=1, faults=(Fault("kill", who, "step 1", delay),)))
        assert lost(sim) == {f"worker-{who}"}
        assert {script.weights for name, script in sim.scripts.items() if name in sim.watcher.done} == {
            sim.watcher.expected[-1][3]
        }


@pytest.mark.parametrize("moment", MOMENTS[:-1])
def test_all_but_one_are_killed_at_once(moment):
    for seed in SEEDS:
        kills = tuple(Fault("kill", who, moment, 0.003) for who in (0, 1, 3))
        sim = over(Plan(seed, 4, pieces=8, restarts=0, faults=kills))
        assert sim.watcher.done == ["worker-2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_more_is_killed_while_the_others_recover(seed):
    first, second = Fault("kill", 0, "step 2", 0.002), Fault("kill", "chief", "view 2", 0.005)
    kills = (first, second, Fault("kill", 2, "view 3", 0.001))
    sim = over(Plan(seed, 4, restarts=0, late=0.05, faults=kills))
    assert len(lost(sim)) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dead_are_replaced_and_the_newcomer_is_told_everything(seed):
    sim = over(Plan(seed, restarts=1, faults=(Fault("kill", 1, "step 0"),)))
    assert sim.watcher.newcomers == 1
    assert sim.scripts["worker-3"].weights == sim.watcher.expected[-1][3]
    assert "worker-3" in sim.watcher.done


@pytest.mark.parametrize("seed", SEEDS)
def test_a_newcomers_callbacks_go_on_where_the_others_do_and_its_fit_returns_the_same(seed):
    kill = Fault("kill", seed % 3, "step 0", 0.05 * seed)
    sim = over(Plan(seed, restarts=1, executes=1 + seed % 2, nested=True, faults=(kill,)))
    assert sim.watcher.newcomers == 1
    assert {script.run.seen for name, script in sim.scripts.items() if name in sim.watcher.done} == {120}


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_one_worker_whose_callbacks_stop_the_fit_stops_it_for_all(who, stop_at):
    for executes in (1, 2):
        sim = over(Plan(stop_at, late=0.1, stop_at=stop_at, stops_on=who, executes=executes))
        assert sorted(sim.watcher.done) == sorted(sim.scripts)
        assert len(sim.watcher.expected) < 9


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.02])
@pytest.mark.parametrize("moment", ["ready", "view 3", "let in"])
def test_a_newcomer_is_killed_while_it_is_let_in(moment, delay):
    for seed in SEEDS[:2]:
        kills = (Fault("kill", 1, "step 0"), Fault("kill", 3, moment, delay))
        assert lost(over(Plan(seed, restarts=1, faults=kills))) >= {"worker-1"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delay", [0.0, 0.003])
def test_who_tells_a_newcomer_is_killed_meanwhile(seed, delay):
    kills = (Fault("kill", 1, "step 0"), Fault("kill", 0, "let in", delay))
    over(Plan(seed, restarts=1, late=0.1, faults=kills))


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("moment", MOMENTS[:-1])
def test_a_worker_that_is_stopped_for_too_long_is_fenced_and_its_old_messages_change_nothing(moment, kills):
    pause = Fault("pause", 1, moment, 0.002, seconds=DEADLINES.silence + 3.0)
    sim = over(Plan(3, restarts=1, fences_kill=kills, faults=(pause,)))
    assert lost(sim) == {"worker-1"}
    assert "worker-1" not in sim.watcher.done


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_is_stopped_for_a_moment_is_waited_for(moment):
    sim = over(Plan(4, faults=(Fault("pause", 1, moment, 0.002, seconds=DEADLINES.silence / 2),)))
    assert len(sim.watcher.views) == 1
    assert not lost(sim)


@pytest.mark.parametrize("moment", MOMENTS[:-2])
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_of_two_that_cannot_reach_each_other_one_goes(moment, pair):
    sim = over(Plan(5, restarts=0, faults=(Fault("cut", pair[0], moment, 0.002, seconds=200.0, other=pair[1]),)))
    assert len(lost(sim)) == 1
    assert lost(sim) <= {f"worker-{number}" for number in pair}


def test_of_two_that_cannot_reach_each_other_one_goes_also_when_waits_may_be_long():
    """Three complaints within a minute never came where each takes as long as the stall deadline: the run hung."""
    cut = Fault("cut", 0, "step 2", seconds=2000.0, other=1)
    sim = play(Plan(5, restarts=0, stall=100.0, faults=(cut,)), limit=800.0)
    assert sim.watcher.overs[0].ok
    assert len(lost(sim)) == 1


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("moment", MOMENTS[:-2])
def test_a_worker_that_lives_but_does_not_come_is_lost_after_its_deadline_and_not_later(moment, kills):
    dawdles = Fault("dawdle", 1, moment, 0.002, seconds=60.0)
    sim = over(Plan(9, restarts=0, fences_kill=kills, faults=(dawdles,)))
    assert lost(sim) == {"worker-1"}
    assert "did not come within 12.0 s (deadline 12.0 s)" in sim.watcher.lost()["worker-1"]
    assert DEADLINES.stall < sim.over_at < DEADLINES.stall + 8.0, "it waited once"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_comes_late_but_in_time_is_waited_for(moment):
    sim = over(Plan(9, faults=(Fault("dawdle", 1, moment, 0.002, seconds=DEADLINES.stall / 2),)))
    assert len(sim.watcher.views) == 1
    assert not lost(sim)


@pytest.mark.parametrize("moment", MOMENTS[:-1])
def test_a_network_that_comes_back_in_time_loses_nobody(moment):
    sim = over(Plan(6, faults=(Fault("cut", 0, moment, 0.002, seconds=DEADLINES.stall / 2, other=2),)))
    assert not lost(sim)


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize("moment", MOMENTS[:-1])
def test_a_worker_that_cannot_reach_the_coordinator_is_fenced(moment, kills):
    away = Fault("away", 1, moment, 0.002, seconds=DEADLINES.silence + 4.0)
    assert lost(over(Plan(7, restarts=0, fences_kill=kills, faults=(away,)))) == {"worker-1"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_standby_takes_the_place_of_the_first_who_is_lost(seed):
    faults = (Fault("standby", mark="view 1", delay=0.1), Fault("kill", 0, "step 2"))
    sim = over(Plan(seed, restarts=0, faults=faults))
    assert "worker-3" in sim.watcher.done
    assert [len(view.workers) for view in sim.watcher.views] == [3, 2, 3]


@pytest.mark.parametrize("moment", MOMENTS[:-2])
@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_workers_wait_until_one_comes(moment, seed):
    sim = over(Plan(seed, least=3, restarts=0, late=0.05, faults=(Fault("kill", 2, moment, 0.002 * seed),)))
    assert [(len(view.workers), view.enough) for view in sim.watcher.views] == [(3, True), (2, False), (3, True)]
    assert sorted(sim.watcher.done) == ["worker-0", "worker-1", "worker-3"]


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_workers_do_not_wait_when_no_step_is_left(seed):
    sim = over(Plan(seed, least=3, restarts=0, late=0.05, faults=(Fault("kill", 2, "step 8", 0.002 * seed),)))
    assert [(len(view.workers), view.enough) for view in sim.watcher.views] == [(3, True), (2, False)]
    assert {"worker-0", "worker-1"} <= set(sim.watcher.done)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_error_of_one_workers_script_does_not_end_the_run(seed):
    sim = over(Plan(seed, restarts=1, faults=(Fault("fail", 1, "step 1"),)))
    assert lost(sim) == {"worker-1"}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_error_on_another_worker_does(seed):
    faults = (Fault("fail", 1, "step 1"), Fault("fail", 2, "view 2", 0.05))
    end = play(Plan(seed, restarts=1, faults=faults)).watcher.overs[0]
    assert not end.ok
    assert set(end.culprits) == {"worker-1", "worker-2"}
    assert "ValueError: boom" in end.reason


@pytest.mark.parametrize("who", ["all", 0, 2])
def test_a_call_that_raises_and_is_caught_is_over_for_all_who_go_on_together(who):
    for seed in SEEDS:
        sim = over(Plan(seed, 4, late=0.05, raises=who))
        assert sorted(sim.watcher.caught) == sorted(sim.watcher.done) == sorted(sim.scripts)
        assert not lost(sim)
        assert len(sim.watcher.views) == 2


@pytest.mark.parametrize("kind", ["kill", "coordinator", "torn"])
@pytest.mark.parametrize("who", ["all", 0, 2])
def test_somebody_dies_while_a_call_is_left(who, kind):
    for seed in seeds(4, 10):
        fault = Fault(kind, seed % 3, "trial", 0.01 * seed)
        sim = over(Plan(seed, 3, restarts=seed % 2, late=0.05, repeats=0.2, raises=who, faults=(fault,)))
        assert lost(sim) <= {f"worker-{seed % 3}"}


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_an_older_view_are_refused(seed):
    faults = (Fault("kill", 2, "step 0"), *(Fault("ghost", 0, "view 2", 0.05 * i) for i in range(1, 5)))
    assert lost(over(Plan(seed, restarts=0, faults=faults))) == {"worker-2"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.02])
def test_a_finished_worker_still_gives_its_last_result_to_those_who_miss_it(seed, delay):
    kill = Fault("kill", 2, "done", delay)
    sim = over(Plan(seed, 4, restarts=0, late=0.1, faults=(kill,)))
    assert lost(sim) <= {"worker-2"}
    assert set(sim.watcher.done) >= {"worker-0", "worker-1", "worker-3"}


# The coordinator dies too ---------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_training_goes_on_while_there_is_no_coordinator(moment):
    for seed in SEEDS:
        sim = over(Plan(seed, 4, late=0.05, faults=(Fault("coordinator", mark=moment, delay=0.002),)))
        assert len(sim.watcher.views) == 1
        assert not lost(sim)


@pytest.mark.parametrize("moment", MOMENTS[:-1])
@pytest.mark.parametrize("delay", [0.0, 0.004, 0.3])
def test_a_worker_and_the_coordinator_are_killed_at_once(moment, delay):
    for seed in seeds(2, 3):
        faults = (Fault("kill", seed, moment, 0.004), Fault("coordinator", mark=moment, delay=delay))
        sim = over(Plan(seed, 4, restarts=1, late=0.05, faults=faults))
        assert lost(sim) == {f"worker-{seed}"}


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_a_view_that_only_some_were_told_of_is_told_to_all_by_the_next_coordinator(seed):
    faults = (Fault("torn", mark="step 0"), Fault("kill", 1, "step 1", 0.002))
    sim = over(Plan(seed, 4, restarts=seed % 2, late=0.05, faults=faults))
    assert "torn" in sim.fired
    assert lost(sim) == {"worker-1"}


@pytest.mark.parametrize("moment", ["ready", "admit", "let in"])
def test_the_coordinator_dies_while_a_newcomer_is_let_in(moment):
    for seed in seeds(4, 8):
        faults = (Fault("kill", 1, "step 0"), Fault("coordinator", mark=moment, delay=0.002 * seed))
        over(Plan(seed, restarts=1, late=0.1, faults=faults))


def test_who_was_lost_stays_outside_of_the_next_coordinators_run():
    for seed in SEEDS:
        pause = Fault("pause", 1, "step 1", seconds=DEADLINES.silence + 3.0)
        faults = (pause, Fault("coordinator", mark="view 2", delay=0.5))
        sim = over(Plan(seed, restarts=0, fences_kill=False, faults=faults))
        assert "worker-1" not in sim.watcher.done


# Leaving and coming on request ----------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS[1:-1])
@pytest.mark.parametrize("who", [0, 2])
def test_who_is_asked_to_leave_does_so_between_two_steps(moment, who):
    for seed in SEEDS[:2]:
        sim = over(Plan(seed, restarts=1, late=0.05, faults=(Fault("drain", who, moment, 0.002),)))
        assert not lost(sim)
        assert len(sim.watcher.done) >= 2


def test_two_leave_at_once_and_one_is_killed_meanwhile():
    for seed in seeds(4, 10):
        leave = (Fault("drain", 0, "step 1", 0.002), Fault("drain", 1, "step 1", 0.003))
        over(Plan(seed, 4, restarts=0, late=0.1, faults=(*leave, Fault("kill", 2, "view 2", 0.001))))


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_a_run_is_scaled_while_it_trains(workers):
    for seed in SEEDS:
        sim = over(Plan(seed, 2, pieces=8, restarts=0, faults=(Fault("scale", mark="step 0", workers=workers),)))
        assert not lost(sim)
        assert max(len(view.workers) for view in sim.watcher.views) == max(2, workers)
        assert len(sim.watcher.views[-1].workers) == workers


# Found by the simulator ---------------------------------------------------------------------------------


def test_nobody_is_called_a_deserter_because_of_one_that_is_stopped_at_the_end():
    """Who waited for the stopped one was taken to wait for one that had finished: the run ended."""
    for seed in seeds(6, 15):
        faults = (Fault("pause", 2, "done", 0.001, seconds=7.0), Fault("kill", 1, "done", 0.002))
        over(Plan(seed, 4, pieces=8, late=0.1, lost_beats=0.2, faults=faults))


def test_too_few_workers_that_do_not_stand_at_the_same_point_get_there_first():
    """One waited between two steps for more workers; the others, in an evaluation, needed its part of the last step."""
    for seed in seeds(3, 8):
        for moment in ("step 2", "evaluate", "step 5"):
            over(Plan(seed, 4, least=4, late=0.1, faults=(Fault("kill", 3, moment, 0.002),)))


def test_who_hangs_up_because_a_new_view_came_is_not_complained_about():
    """Three such complaints, and an innocent worker was lost."""
    for seed in seeds(6, 15):
        faults = (Fault("kill", 0, "step 4", 0.004), Fault("kill", "newest", "view 3", 0.001))
        sim = over(Plan(seed, 5, least=5, pieces=8, late=0.1, faults=faults))
        assert not any("could not be reached" in why for why in sim.watcher.lost().values())


def test_a_newcomer_is_told_the_state_only_when_nobody_is_behind_it():
    """It has no result to give. Who was behind, and had just got one, forgot it when the view changed again."""
    for seed in seeds(12, 30):
        moment = ("step 0", "step 2", "evaluate")[seed % 3]
        both = (Fault("kill", "chief", "let in"), Fault("kill", 1, "let in"))
        least = 1 + 3 * (seed % 2)
        play(Plan(seed, 4, least=least, restarts=3, late=0.4, faults=(Fault("kill", 3, moment, 0.002), *both)))


# Any faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 6))])
def test_a_hundred_random_runs_keep_every_promise(part):
    for seed in range(100 * part, 100 * part + 100):
        play(random_plan(seed))


def test_a_run_is_a_function_of_its_seed():
    plan = random_plan(13)
    one, other = play(plan), play(plan)
    assert (one.over_at, one.world.sent, one.watcher.views) == (other.over_at, other.world.sent, other.watcher.views)


def test_a_failing_run_names_its_seed_and_the_faults_that_matter(monkeypatch):
    monkeypatch.setattr("shoal.collectives.worker_group.resync", lambda members, standings: 1 / 0)
    plan = Plan(8, faults=(Fault("pause", 0, "step 1", seconds=0.5), Fault("kill", 0, "step 3")))
    with pytest.raises(Wrong) as caught:
        play(replace(plan, nested=True))
    told = str(caught.value)
    assert "seed 8" in told
    assert "nested=False" in told
    assert "'kill'" in told
    assert "'pause'" not in told
