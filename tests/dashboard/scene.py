"""Runs that nobody has started: what a coordinator would have answered, and what would lie in the logs."""

from __future__ import annotations

from typing import Any

from shoal.cluster.messages import MemberStatus, RunOutcome, StatusReply
from shoal.dashboard.sources import RunSources
from shoal.observe.chart import ChartPoint, ShownLogs
from shoal.observe.phases import Phase, TimeUse
from shoal.observe.spans import Span
from shoal.observe.time_shares import TimeShares

NOW = 1_800_000_000.0


def worker(number: int, state: str = "training", step: int = 40, logs: ShownLogs | None = None) -> MemberStatus:
    spent = TimeShares({TimeUse.COMPUTING: 3.0, TimeUse.WAITING: 1.0, TimeUse.OTHER: 9.0})
    return MemberStatus(
        f"worker-{number}",
        "worker",
        70 + number,
        "vm",
        state,
        step,
        "computing",
        "computing piece 1",
        512.0,
        0.1,
        spent,
        3 * 10**8,
        logs or {},
    )


COORDINATOR = MemberStatus("coordinator", "coordinator", 69, "vm", "serving", 0, "", "", 0.0, 0.0)


def reply(*members: MemberStatus, ended: RunOutcome | None = None, losses: int = 0) -> StatusReply:
    return StatusReply(
        "r1",
        "/x/train.py",
        "jax",
        "allreduce",
        4,
        1,
        2,
        61.0,
        "/logs",
        (COORDINATOR, *members),
        losses=losses,
        ended=ended,
    )


def gathered(answer: StatusReply | None, is_alive: bool = True, **more: Any) -> RunSources:
    return RunSources("r1", NOW, is_alive, answer, **more)


def points(count: int) -> list[ChartPoint]:
    return [ChartPoint(NOW - count + i, i + 1, 100.0 + i, 2, {"loss": 1.0 / (i + 1)}) for i in range(count)]


def span(member: str, step: int, start: float, seconds: float, phase: Phase = Phase.COMPUTING) -> Span:
    return Span(member, phase, step, NOW + start, seconds)
