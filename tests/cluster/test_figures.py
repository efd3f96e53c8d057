"""The figures of a whole run, from what its coordinator answers."""

from __future__ import annotations

import pytest

from shoal.cluster.figures import NOBODY, figures, named_figures
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares


def named(*waits: float, state: str = "training") -> dict[str, float]:
    """Of workers that wait for so much of their time."""
    members = tuple(
        MemberStatus(
            *(f"worker-{number}", "worker", 1, "vm", state, 40 + number, "", "", 100.0 + number, 0.0),
            spent=TimeShares({TimeUse.COMPUTING: 1.0 - wait, TimeUse.WAITING: wait}),
            counted=WorkerFigures(steps=10, sent=1000, shared=4000),
        )
        for number, wait in enumerate(waits)
    )
    reply = StatusReply("r", "/x/train.py", "jax", "allreduce", 4, 1, 1, 61.0, "/logs", members, losses=1)
    return named_figures(figures(reply))


def test_all_workers_are_one() -> None:
    found = named(0.2, 0.2)
    assert (found["shoal/workers"], found["shoal/samples_per_second"], found["shoal/losses"]) == (2.0, 101.0, 1.0)
    assert found["shoal/bytes_per_step"] == 1000.0
    assert found["shoal/time/waiting"] == pytest.approx(0.2)


def test_the_one_that_others_wait_for_is_named_with_how_much_they_do() -> None:
    found = named(0.5, 0.1, 0.5)
    assert (found["shoal/slowest/worker"], found["shoal/slowest/others_wait"]) == (1.0, pytest.approx(0.5))
    even = named(0.5, 0.45, 0.5)
    assert (even["shoal/slowest/worker"], even["shoal/slowest/others_wait"]) == (NOBODY, 0.0)


def test_where_nobody_trains_there_are_numbers_too() -> None:
    assert set(named(state="lost").values()) == {0.0, 1.0, NOBODY}


@pytest.mark.parametrize("strategy", ["allreduce", "pipeline", "local", "auto", "ps"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_samples_of_steps_that_all_commit_together_count_once_whatever_the_command_line_said(
    strategy: str, asynchronous: bool
) -> None:
    counted = WorkerFigures(steps=10, asynchronous=asynchronous)
    members = tuple(
        MemberStatus(f"worker-{n}", "worker", 1, "vm", "training", 40 + n, "", "", 100.0, 0.0, counted=counted)
        for n in range(3)
    )
    reply = StatusReply("r", "/x/train.py", "jax", strategy, 4, 1, 1, 61.0, "/logs", members)
    assert figures(reply).samples_per_second == (300.0 if asynchronous else 100.0)
