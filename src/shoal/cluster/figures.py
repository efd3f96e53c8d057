"""The figures of a whole run, from what its coordinator answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.cluster.view import number_of
from shoal.observe.chart import ChartPoint, ShownLogs
from shoal.observe.counters import summed
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import slowest, together

NOBODY = -1  # in place of a worker's number


class GlobalFigures(msgspec.Struct, frozen=True):
    """How the run goes on, as one."""

    step: int
    workers: int  # that train
    samples_per_second: float
    losses: int  # workers and servers that were lost so far
    shares: dict[TimeUse, float]  # of the workers' time in the last seconds; they add up to 1
    logs: ShownLogs  # the chief's: loss and metrics of the whole batch
    slowest: int | None = None  # the number of the worker that the others wait for, if there is one
    waited_for: float = 0.0  # the share of their time in which they do
    bytes_per_step: float = 0.0  # that all workers together give to others, lately


def figures(reply: StatusReply) -> GlobalFigures:
    """Of the workers that train now; of a run that is over, of those that finished."""
    workers = at_work(reply)
    spent = together(member.spent for member in workers)
    chief = min(workers, key=lambda member: number_of(member.id), default=None)
    late = slowest({member.id: member.spent for member in workers})
    counted = summed(member.counted for member in workers)
    return GlobalFigures(
        max((member.step for member in workers), default=0),
        len(workers),
        pace(workers),
        reply.losses,
        {use: spent.share(use) for use in TimeUse if use is not TimeUse.OTHER},
        chief.logs if chief is not None else {},
        number_of(late) if late is not None else None,
        _waits_of(member for member in workers if member.id != late) if late is not None else 0.0,
        (counted.sent + counted.shared) / counted.steps if counted.steps else 0.0,
    )


def named_figures(of: GlobalFigures) -> dict[str, float]:
    """For whoever keeps numbers by name. Loss and metrics are left out: Keras hands those to every callback."""
    shares = {f"shoal/time/{use}": share for use, share in of.shares.items()}
    return {
        "shoal/samples_per_second": of.samples_per_second,
        "shoal/workers": float(of.workers),
        "shoal/losses": float(of.losses),
        "shoal/bytes_per_step": of.bytes_per_step,
        "shoal/slowest/worker": float(of.slowest if of.slowest is not None else NOBODY),
        "shoal/slowest/others_wait": of.waited_for,
        **shares,
    }


def _waits_of(members: Iterable[MemberStatus]) -> float:
    return together(member.spent for member in members).share(TimeUse.WAITING)


def at_work(reply: StatusReply) -> list[MemberStatus]:
    """The workers that train, or else those that have."""
    for state in ("training", "finished"):
        found = [member for member in reply.members if member.role == "worker" and member.state == state]
        if found:
            return found
    return []


def pace(workers: Sequence[MemberStatus]) -> float:
    """Samples per second of all together: where they commit steps together, each counts the samples of all."""
    rates = [member.samples_per_second for member in workers]
    return sum(rates) if any(member.counted.asynchronous for member in workers) else max(rates, default=0.0)


def point(reply: StatusReply, at: float) -> ChartPoint | None:
    """For the run's chart; None before its first step, and when nobody trains."""
    if not any(member.role == "worker" and member.state == "training" for member in reply.members):
        return None
    now = figures(reply)
    return ChartPoint(at, now.step, now.samples_per_second, now.workers, now.logs) if now.step else None
