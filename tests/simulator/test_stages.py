"""Training in stages under the seeded simulator: whoever holds what, and whoever is lost, the numbers are the same."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import StageLost
from shoal.strategies.placement import StagePlacement
from shoal.training import held_stages, pipelined
from shoal.training.fit_loop import AbstractTraining
from shoal.training.held_stages import HeldStages
from shoal.training.pipelined import PipelinedTraining

from .elastic import LIMIT, Fault, Plan, Simulation, play
from .mutants import RUNS, Mutants, found

MOMENTS = ("view 1", "step 0", "step 3", "evaluate", "step 5", "step 8")


def over(plan: Plan) -> Simulation:
    """Plays it; it must end well."""
    sim = play(plan)
    assert sim.watcher.overs[0].ok, f"seed {plan.seed}: {sim.watcher.overs[0].reason}"
    return sim


@pytest.mark.parametrize(("stages", "workers"), [(2, 2), (2, 3), (3, 4), (4, 4)])
def test_any_placement_comes_to_the_numbers_of_one_machine(stages, workers):
    sim = over(Plan(1, workers, pieces=4, stages=stages))
    assert len(sim.watcher.views) == 1
    assert {script.weights for script in sim.scripts.values()} == {sim.watcher.expected[-1][3]}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", [0, 1])
def test_when_the_only_worker_of_a_stage_is_lost_its_neighbour_goes_on_from_its_copy(moment, who):
    sim = over(Plan(who, 2, stages=2, pieces=2, restarts=0, faults=(Fault("kill", who, moment, 0.004),)))
    assert set(sim.watcher.lost()) == {f"worker-{who}"}


def test_who_replaces_a_lost_worker_gets_a_stage_and_then_one_after_another_may_be_lost():
    for seed in range(3):
        faults = (
            Fault("kill", 0, "step 0", 0.002),
            Fault("kill", 1, "let in", 0.05),
            Fault("kill", 2, "let in", 0.05, nth=2),
        )
        sim = over(Plan(seed, 3, stages=3, pieces=2, restarts=1, late=0.02, faults=faults))
        assert len(sim.watcher.lost()) >= 2
        assert sim.watcher.newcomers >= 1


def test_without_copies_the_loss_of_a_stage_ends_the_run_and_says_so_and_any_other_does_not():
    lost = play(Plan(1, 3, stages=2, pieces=2, lean=True, restarts=0, faults=(Fault("kill", 0, "step 1", 0.01),)))
    assert not lost.watcher.overs[0].ok
    assert "held the only copy of stage 0" in lost.watcher.overs[0].reason
    assert all(isinstance(error, StageLost) for error in lost.watcher.errors.values())
    over(Plan(1, 3, stages=2, pieces=2, lean=True, restarts=0, faults=(Fault("kill", 2, "step 1", 0.01),)))


def test_a_stage_that_is_lost_after_the_last_epoch_is_gone_back_for_too(monkeypatch):
    training, lost, back = object.__new__(PipelinedTraining), [StageLost("a", "b"), StageLost("c", "d")], []

    def end(self: Any) -> None:
        if lost:
            raise lost[0]

    def go_back(self: Any, error: StageLost) -> None:
        back.append(error)
        assert lost.pop(0) is error

    monkeypatch.setattr(AbstractTraining, "_to_the_end", end)
    monkeypatch.setattr(PipelinedTraining, "_go_back", go_back)
    expected = list(lost)
    training._to_the_end()
    assert back == expected

    def nowhere(self: Any, error: StageLost) -> None:
        raise error

    lost.append(StageLost("e", "f"))
    monkeypatch.setattr(PipelinedTraining, "_go_back", nowhere)
    with pytest.raises(StageLost, match=r"e\. f"):
        training._to_the_end()


def test_before_a_checkpoint_a_lost_stage_is_refused_and_all_hear_of_the_same_members():
    members = ["worker-0", "worker-1"]
    group = SimpleNamespace(gather=lambda what, value: [value] * len(members))
    worker_group = SimpleNamespace(view=4, members=("worker-0", "worker-1"))
    worker_group.commit = lambda act: act(SimpleNamespace(members=tuple(members), gather=group.gather))
    stages = SimpleNamespace(costs=(1.0, 1.0), described=["dense", "dense_1"])
    held = HeldStages(SimpleNamespace(worker_group=worker_group, me="worker-0"), stages, None, copies=False)
    held.placement = StagePlacement({"worker-0": (0,), "worker-1": (1,)})
    assert held.whole_among() == (("worker-0", "worker-1"), 4)
    members.remove("worker-1")
    with pytest.raises(StageLost, match="worker-1 held the only copy of stage 1, dense_1"):
        held.whole_among()


def random_stages(seed: int) -> Plan:
    """Placements, schedules, workers and kills, two at once and during recovery too."""
    chance = random.Random(f"stages {seed}")
    stages = chance.choice((2, 2, 2, 3, 3, 4))
    workers = stages + chance.choice((0, 0, 1, 2))
    faults = []
    for _ in range(chance.choice((1, 2, 2, 3))):
        marks = (f"step {chance.randint(0, 8)}", f"view {chance.randint(2, 4)}", "evaluate", "let in", "admit")
        who = chance.choice((*range(workers), "newest", "chief"))
        faults.append(Fault("kill", who, chance.choice(marks), chance.expovariate(1 / chance.choice((0.003, 0.05)))))
    return Plan(
        seed,
        workers,
        pieces=chance.choice((2, 2, 4)),
        stages=stages,
        lean=chance.random() < 0.15,
        restarts=chance.choice((0, 1, 2)),
        late=chance.choice((0.0, 0.0, 0.05)),
        validates=chance.random() < 0.6,
        executes=chance.choice((1, 1, 2)),
        stop_at=chance.choice((None, None, None, 4)),
        faults=tuple(faults),
    )


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 6))])
def test_forty_kills_at_random_moments_keep_every_promise(part):
    kills, seed = 0, 1000 * part
    while kills < 40:
        kills += play(random_stages(seed)).fired.count("kill")
        seed += 1
    assert seed - 1000 * part < 60


# The mutants --------------------------------------------------------------------------------------------

MUTANTS = Mutants()


def one_is_lost(seed: int) -> Plan:
    faults = (Fault("kill", seed % 2, f"step {seed % 5}", 0.005 * (seed % 7)),)
    return Plan(seed, 2, stages=2, pieces=2, restarts=0, validates=False, faults=faults)


def one_is_replaced(seed: int) -> Plan:
    faults = (Fault("kill", seed % 3, f"step {seed % 3}", 0.003),)
    return Plan(seed, 3, stages=3, pieces=2, restarts=1, validates=False, faults=faults)


def lost_while_stages_move(seed: int) -> Plan:
    """One of those between whom stages move is lost before the step has committed."""
    first = Fault("kill", 0, "step 0", 0.002)
    second = Fault("kill", ("newest", 2, 1)[seed % 3], "let in", 0.001 * (1 + 7 * (seed % 6)))
    return Plan(seed, 4, stages=3, pieces=2, restarts=2, validates=False, faults=(first, second))


def looked_at(seed: int) -> Plan:
    return Plan(seed, 3, stages=3, pieces=2, restarts=0)


@MUTANTS.shows(one_is_lost)
def a_copy_is_not_kept_up_to_date(patch: pytest.MonkeyPatch) -> None:
    real = PipelinedTraining._apply

    def apply(self: Any) -> None:
        mine = self._held.placement.computes[self._run.me]
        self._totals = {stage: totals for stage, totals in self._totals.items() if stage in mine}
        real(self)

    patch.setattr(PipelinedTraining, "_apply", apply)


@MUTANTS.shows(one_is_lost)
def a_lost_stage_is_nobodys(patch: pytest.MonkeyPatch) -> None:
    """Whoever has the copy does not compute it."""
    real = held_stages.settle

    def settle(before: StagePlacement, *rest: Any) -> StagePlacement:
        return real(StagePlacement(before.computes, {}), *rest)

    patch.setattr(held_stages, "settle", settle)


@MUTANTS.shows(one_is_replaced)
def a_newcomer_begins_with_the_weights_that_it_was_built_with(patch: pytest.MonkeyPatch) -> None:
    def pass_on(self: Any, group: Any, move: Any) -> None:
        if group.rank in move.takers:
            self._stages.engines[move.stage].open()
            self._open.add(move.stage)

    patch.setattr(HeldStages, "_pass_on", pass_on)


@MUTANTS.shows(one_is_replaced)
def a_newcomer_gets_a_stage_without_its_optimizer(patch: pytest.MonkeyPatch) -> None:
    real = HeldStages._pass_on

    def pass_on(self: Any, group: Any, move: Any) -> None:
        real(self, group, move)
        if group.rank in move.takers:
            self._stages.engines[move.stage].momentum = 0

    patch.setattr(HeldStages, "_pass_on", pass_on)


@MUTANTS.shows(lost_while_stages_move, seed=4)
def who_is_to_hold_a_stage_counts_before_the_step_has_committed(patch: pytest.MonkeyPatch) -> None:
    real = HeldStages.settle

    def settle(self: Any, group: Any) -> StagePlacement:
        before = self.placement
        wanted = held_stages.settle(before, self._stages.costs, group.members, self._copies)
        self.placement = wanted  # although nothing has been passed on yet
        try:
            self.placement, after = before, real(self, group)
        finally:
            self.placement = wanted
        return after

    patch.setattr(HeldStages, "settle", settle)


@MUTANTS.shows(looked_at)
def the_whole_model_is_looked_at_when_nobody_has_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PipelinedTraining, "_after_steps", lambda self: None)


@MUTANTS.shows(one_is_lost)
def pieces_are_shared_among_those_who_were_there_before(patch: pytest.MonkeyPatch) -> None:
    real, first = pipelined.share, {}

    def share(holders: Any, pieces: int, members: Any, balances: Any) -> Any:
        return real(first.setdefault("holders", holders), pieces, members, balances)

    patch.setattr(pipelined, "share", share)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_found(name):
    assert found(MUTANTS[name], LIMIT) is not None, f"{name} was not found in {RUNS} runs"


@pytest.mark.parametrize("plans", MUTANTS.plans())
def test_without_a_mutant_the_same_plans_keep_every_promise(plans):
    for seed in range(3):
        play(plans(seed))
