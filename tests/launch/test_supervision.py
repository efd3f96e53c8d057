"""What a supervisor decides: whom to start, whom to replace, what to send when, and how it ended."""

from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from shoal.cluster.exits import ENDED, INTERRUPTED
from shoal.cluster.launcher_pipe import Dying, Interrupt, MemberTold, Reaped, Spawned, Wanted
from shoal.cluster.messages import End
from shoal.launch.plan import ProcessPlan
from shoal.launch.supervision.coordination import PlaceGiven
from shoal.launch.supervision.decisions import (
    AskForPlace,
    FolderDeleted,
    InterruptHeard,
    MarkInterrupted,
    ReleaseMember,
    ShowUser,
    SignalMembers,
    StartMember,
    Supervision,
    SupervisionAction,
    SupervisionEvent,
    TellCoordinator,
    with_late_deaths,
)
from shoal.launch.supervision.farewell import ENDING, PARTING, SAVING, InterruptPolicy
from shoal.launch.supervision.restarts import Restarts

GOOD = End(True, 0, "every worker finished its script")
BAD = End(False, 1, "worker-1 raised ValueError", culprits=("worker-1",))
CTRL_C = InterruptHeard("it was interrupted (SIGINT)", 130)
HOUR = 3600.0


class Scene:
    """A supervision whose members do as the test says; places are given as soon as they are asked for."""

    def __init__(
        self, workers: int = 2, servers: int = 0, max_restarts: int = 1, policy: InterruptPolicy = ENDING
    ) -> None:
        ids = [*(f"worker-{n}" for n in range(workers)), *(f"server-{n}" for n in range(servers))]
        self.plans = {id: ProcessPlan(id, (), {}) for id in ids}
        self.supervision = Supervision(list(self.plans.values()), max_restarts, policy)
        self.now = 100.0
        self.started: dict[str, str] = {}  # member -> place

    def all_start(self) -> Scene:
        while self.supervision.patience(self.now, 1.0) == 0.0:
            self.due()
        return self

    def due(self, after: float = 0.0) -> list[SupervisionAction]:
        self.now += after
        return self._took(self.supervision.due(self.now))

    def signals(self, after: float = 0.0) -> list[int]:
        return [act.number for act in self.due(after) if isinstance(act, SignalMembers)]

    def see(self, event: SupervisionEvent, after: float = 0.0) -> list[SupervisionAction]:
        self.now += after
        return self._took(self.supervision.handle(event, self.now))

    def _took(self, acts: list[SupervisionAction]) -> list[SupervisionAction]:
        for act in acts:
            if isinstance(act, StartMember):
                self.started[act.id] = act.plan.id
                self.see(Spawned(act.id, 1000 + len(self.started)))
            if isinstance(act, AskForPlace):
                role = act.plan.id.partition("-")[0]
                number = sum(id.startswith(role) for id in self.started)
                self.see(PlaceGiven(f"{role}-{number}", act.plan))
        return acts


def test_members_are_started_one_at_a_time_and_the_coordinator_hears_of_each() -> None:
    scene = Scene(workers=1, servers=1)
    assert scene.supervision.due(0.0) == [StartMember("worker-0", scene.plans["worker-0"])]
    assert scene.supervision.handle(Spawned("worker-0", 7), 0.0) == [
        TellCoordinator(Spawned("worker-0", 7)),
        ReleaseMember("worker-0", scene.plans["worker-0"]),
    ], "who is not known yet would be refused"
    assert scene.supervision.patience(0.0, 1.0) == 0.0, "there is another to start"
    assert scene.supervision.due(0.0) == [StartMember("server-0", scene.plans["server-0"])]
    assert scene.supervision.patience(0.0, 1.0) == 1.0


@pytest.mark.parametrize("end", [CTRL_C, GOOD])
def test_nobody_is_started_once_it_is_to_end(end: SupervisionEvent) -> None:
    scene = Scene(workers=3)
    scene.due()
    scene.see(end)
    scene.due()
    assert list(scene.started) == ["worker-0"]


def test_a_place_that_is_given_too_late_is_left_empty() -> None:
    scene = Scene().all_start()
    plan = scene.plans["worker-1"]
    assert AskForPlace(plan) in scene.supervision.handle(Reaped("worker-1", -9), scene.now)
    scene.see(CTRL_C)
    assert scene.supervision.handle(PlaceGiven("worker-2", plan), scene.now) == []


def test_the_dead_are_replaced_as_often_as_is_allowed_within_an_hour() -> None:
    scene = Scene(max_restarts=2).all_start()
    for dead, next_one in (("worker-1", "worker-2"), ("worker-2", "worker-3")):
        scene.see(Dying(dead))
        assert TellCoordinator(Reaped(dead, -9)) in scene.see(Reaped(dead, -9), after=60)
        assert scene.started[next_one] == "worker-1"
    text = "worker-1 was replaced 2 times within an hour; the run goes on without it"
    assert ShowUser(text) in scene.see(Reaped("worker-3", -9), after=60)
    assert "worker-4" not in scene.started
    scene.see(Reaped("worker-0", -9), after=60)
    assert scene.started["worker-4"] == "worker-0", "each place is counted by itself"


def test_what_happened_more_than_an_hour_ago_no_longer_counts() -> None:
    restarts = Restarts(2)
    assert [restarts.grant("a", at) for at in (0.0, 10.0, 20.0)] == [True, True, False]
    assert restarts.grant("b", 20.0)
    assert [restarts.grant("a", at) for at in (HOUR, HOUR + 1, HOUR + 10)] == [True, False, True]


def test_without_restarts_nothing_is_said_of_them() -> None:
    scene = Scene(max_restarts=0).all_start()
    assert scene.see(Reaped("worker-1", -9)) == [TellCoordinator(Reaped("worker-1", -9))]


@pytest.mark.parametrize("code", [0, ENDED, INTERRUPTED])
def test_who_left_on_purpose_is_not_replaced(code: int) -> None:
    scene = Scene().all_start()
    assert scene.see(Reaped("worker-1", code)) == [TellCoordinator(Reaped("worker-1", code))]


def test_more_workers_get_the_cores_that_are_used_least() -> None:
    scene = Scene(workers=3, servers=1).all_start()
    scene.see(Reaped("worker-1", 0))
    acts = scene.supervision.handle(Wanted(3), scene.now)
    assert [act.plan.id for act in acts if isinstance(act, AskForPlace)] == ["worker-1", "worker-0", "worker-1"]


def test_what_the_coordinator_says_is_shown() -> None:
    assert Scene().see(MemberTold("worker-1 was lost")) == [ShowUser("worker-1 was lost")]


def test_stragglers_get_a_while_after_a_success_and_less_after_a_failure() -> None:
    scene = Scene().all_start()
    scene.see(GOOD)
    assert [scene.signals(), scene.signals(29), scene.signals(1), scene.signals(1)] == [[], [], [SIGTERM], [SIGKILL]]
    scene = Scene().all_start()
    scene.see(BAD)
    assert scene.supervision.patience(scene.now, 5.0) == 1.0
    assert [scene.signals(0.9), scene.signals(0.1), scene.signals(1)] == [[], [SIGTERM], [SIGKILL]]


@pytest.mark.parametrize(
    ("policy", "says", "sent"),
    [
        (ENDING, "ending the run", [SIGINT]),
        (SAVING, "writing a checkpoint and ending the run", []),
        (PARTING, "leaving the run", [SIGTERM]),
    ],
)
def test_the_first_interrupt_is_gentle_and_the_second_is_not(
    policy: InterruptPolicy, says: str, sent: list[int]
) -> None:
    scene = Scene(policy=policy).all_start()
    assert scene.see(CTRL_C) == [
        MarkInterrupted(),
        TellCoordinator(Interrupt("it was interrupted (SIGINT)", 130)),
        ShowUser(f"{says}; a second Ctrl-C ends it at once", apart=True),
    ]
    assert scene.signals() == sent
    assert not any(isinstance(act, ShowUser) for act in scene.see(CTRL_C))
    assert scene.signals() == [SIGKILL]
    assert scene.see(Reaped("worker-1", -9)) == [TellCoordinator(Reaped("worker-1", -9))], "nobody takes its place"


def test_once_the_checkpoint_is_written_those_who_stay_are_told_to_go() -> None:
    scene = Scene(policy=SAVING).all_start()
    scene.see(CTRL_C)
    assert scene.signals(64) == []
    scene.see(End(False, 130, "it was interrupted"))
    assert scene.signals() == [SIGINT]


def test_a_lost_folder_ends_a_run_that_can_save_what_it_has() -> None:
    gone = FolderDeleted("/run/x", "no such disk")
    assert TellCoordinator(Interrupt("its folder was deleted, and can't be made anew: no such disk", 1)) in Scene(
        policy=SAVING
    ).see(gone)
    (said,) = Scene().see(gone)
    assert isinstance(said, ShowUser)
    assert "goes on as long as nobody is lost" in said.text
    (said,) = Scene().see(FolderDeleted("/run/x"))
    assert isinstance(said, ShowUser)
    assert "is made anew" in said.text


def test_it_is_over_when_the_run_has_ended_and_nobody_is_left() -> None:
    scene = Scene().all_start()
    scene.see(Reaped("worker-0", 0))
    assert not scene.supervision.is_over
    scene.see(GOOD)
    assert not scene.supervision.is_over, "worker-1 is still there"
    scene.see(Reaped("worker-1", 0))
    assert scene.supervision.is_over
    assert scene.supervision.outcome() == GOOD


def test_a_crash_after_the_end_spoils_it_and_one_before_does_not() -> None:
    scene = Scene(servers=1).all_start()
    scene.see(Reaped("worker-1", -9))
    scene.see(GOOD)
    scene.see(Reaped("worker-0", 0))
    scene.see(Reaped("server-0", 5))
    scene.see(Reaped("worker-2", 5))
    end = scene.supervision.outcome()
    assert (end.ok, end.code, end.culprits) == (False, 1, ("worker-2",))
    assert end.reason == "worker-2 finished its script, but its process then exited with code 5"


def test_one_that_was_started_when_the_run_was_all_but_over_is_no_failure() -> None:
    """The coordinator ended the run before it had heard of it, and refused it."""
    assert with_late_deaths(GOOD, {"worker-0": 0, "worker-4": ENDED}, set()) == GOOD


def test_a_failed_run_keeps_its_reason() -> None:
    assert with_late_deaths(BAD, {"worker-0": -15, "worker-1": 1}, set()) == BAD
