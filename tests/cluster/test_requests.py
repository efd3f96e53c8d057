"""What is asked of a coordinator from outside, and the figures that it answers with."""

from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.figures import figures, named_figures, point
from shoal.cluster.membership.member_state import MemberState
from shoal.cluster.membership.requests import RunAsked, decide
from shoal.cluster.messages import Answer, CheckpointRequest, JoinerPlace, MemberStatus, PlaceRequest, StatusReply
from shoal.cluster.view import Member, View
from shoal.config import RunConfig, Saving
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares


def asked(saving: Saving | None, is_over: bool = False) -> RunAsked:
    view = View.of(1, [Member("worker-0", "worker", 1, "h", "m", "unix:x")], True, 0)
    return RunAsked(RunConfig("r", 2, 1, "jax", "t.py", least=1, saving=saving), {}, view, is_over, 2)


def test_a_checkpoint_is_granted_where_checkpoints_are_written_and_the_run_goes_on() -> None:
    granted = decide(CheckpointRequest(), asked(Saving("/ck")))
    assert granted.saves
    assert isinstance(granted.answer, Answer)
    assert granted.answer.ok
    for refused in (decide(CheckpointRequest(), asked(None)), decide(CheckpointRequest(), asked(Saving("/ck"), True))):
        assert not refused.saves
        assert isinstance(refused.answer, Answer)
        assert not refused.answer.ok


def test_who_is_expected_gets_its_own_place_before_the_run_begins_and_nobody_else_does() -> None:
    config = RunConfig("r", 2, 1, "jax", "t.py", least=1)
    came = Member("worker-0", "worker", 1, "h", "m", "unix:x")
    members = {"worker-0": MemberState(member=came), "worker-1": MemberState()}
    forming = RunAsked(config, members, None, False, 2)
    assert decide(PlaceRequest("worker-1"), forming).answer == JoinerPlace("worker-1", config)
    for other in ("", "worker-0", "worker-2"):
        answer = decide(PlaceRequest(other), forming).answer
        assert isinstance(answer, Answer)
        assert answer.again, "one who has it already, or who was never expected, waits until the run has begun"
    begun = RunAsked(config, {**members, "worker-1": MemberState(left=True)}, View.of(1, [came], True, 0), False, 2)
    assert decide(PlaceRequest("worker-1"), begun).answer == JoinerPlace("worker-1000", config), "as a newcomer"


def worker(number: int, state: str, rate: float, waits: float, loss: float) -> MemberStatus:
    spent = TimeShares({TimeUse.COMPUTING: 1.0 - waits, TimeUse.WAITING: waits})
    step, logs = 10 + number, {"loss": loss}
    return MemberStatus(f"worker-{number}", "worker", 1, "h", state, step, "", "", rate, 0.0, spent, 5, logs)


def reply(strategy: str, *members: MemberStatus) -> StatusReply:
    return StatusReply("r", "t.py", "jax", strategy, 2, 1, 1, 9.0, "", members, losses=1)


def test_the_figures_of_a_run_are_those_of_its_workers_together() -> None:
    workers = [worker(10, "training", 80.0, 0.5, 3.0), worker(2, "training", 100.0, 0.0, 1.0)]
    workers.append(worker(1, "lost", 70.0, 0.9, 9.0))
    found = figures(reply("allreduce", *workers))
    assert (found.workers, found.step, found.samples_per_second, found.losses) == (2, 20, 100.0, 1)
    assert found.shares[TimeUse.WAITING] == pytest.approx(0.25)
    assert found.logs == {"loss": 1.0}  # the chief's: the lowest number counts, not the first text
    alone = [msgspec.structs.replace(one, counted=WorkerFigures(asynchronous=True)) for one in workers]
    assert figures(reply("ps", *alone)).samples_per_second == 180.0
    named = named_figures(found)
    assert named["shoal/samples_per_second"] == 100.0
    assert named["shoal/time/waiting"] == pytest.approx(0.25)
    assert all(isinstance(value, float) for value in named.values())


def test_of_a_run_that_is_over_those_count_who_finished_and_nothing_is_drawn() -> None:
    over = reply("allreduce", worker(0, "finished", 0.0, 0.0, 1.0), worker(1, "lost", 0.0, 0.0, 1.0))
    assert figures(over).workers == 1
    assert point(over, 1.0) is None
    begun = reply("allreduce", msgspec.structs.replace(worker(0, "training", 0.0, 0.0, 1.0), step=0))
    assert point(begun, 1.0) is None
