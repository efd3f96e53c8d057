"""How a run goes on, in one line. Pure.

A terminal has few columns, so what matters most comes first: who trains, how far, how fast, where the time goes, and
who is waited for. What there is no room for is said in fewer words, or left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.cluster.figures import pace
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.amounts import percent
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares, slowest, together

_COMING = ("starting", "joined", "ready")  # or standing by
_BETWEEN = " · "
_IN_SHORT = {
    TimeUse.COMPUTING: "comp",
    TimeUse.EXCHANGING: "exch",
    TimeUse.WAITING: "wait",
    TimeUse.READING: "read",
    TimeUse.CALLBACKS: "call",
}
_WORTH_SAYING = 0.05  # of the time, where there is little room


def progress(reply: StatusReply, columns: int | None = None) -> str:
    """Empty before the first step. `columns`: that it may take; None: as many as it needs."""
    workers = [member for member in reply.members if member.role == "worker" and member.state == "training"]
    step = max((member.step for member in workers), default=0)
    if not step:
        return ""
    coming = sum(member.role == "worker" and member.state in _COMING for member in reply.members)
    wanted = reply.wanted or len(workers) + coming
    saved = max(member.counted.saved for member in workers)
    there = f"{len(workers)} of {wanted} workers", f"{len(workers)}/{wanted} workers"
    rate = f"{pace(workers):,.0f}"
    # Each in full, and in fewer words.
    told = [
        there if len(workers) < wanted else _same(f"{len(workers)} workers"),
        _same(f"step {step:,}"),
        (f"{rate} samples/s", f"{rate}/s"),
        _shares(together(member.spent for member in workers)),
        _slowest(workers),
        _same(f"{reply.losses} lost" if reply.losses else ""),
        _same(f"checkpoint of step {saved:,}" if saved else ""),
        _same(f"{coming} standing by" if coming and len(workers) >= wanted else ""),
    ]
    told = [(full, short) for full, short in told if full]
    return next(line for line in _shorter(told) if columns is None or len(line) <= columns or not line)


def _shorter(told: Sequence[tuple[str, str]]) -> Iterator[str]:
    """All that can be said, from the longest to nothing: more and more of it in fewer words, then without the last."""
    for full in range(len(told), 0, -1):
        yield _BETWEEN.join([*(one for one, _ in told[:full]), *(short for _, short in told[full:] if short)])
    for count in range(len(told), -1, -1):
        yield _BETWEEN.join(short for _, short in told[:count] if short)


def _same(text: str) -> tuple[str, str]:
    return text, text


def _shares(spent: TimeShares) -> tuple[str, str]:
    largest = sorted(_IN_SHORT, key=spent.share, reverse=True)
    worth_it = [use for use in largest if spent.share(use) >= _WORTH_SAYING]
    return str(spent), " ".join(f"{100 * spent.share(use):.0f}% {_IN_SHORT[use]}" for use in worth_it)


def _slowest(workers: Sequence[MemberStatus]) -> tuple[str, str]:
    """The one that is waited for, and by how much, if there is one."""
    late = slowest({member.id: member.spent for member in workers})
    if late is None:
        return _same("")
    waits = [member.spent.share(TimeUse.WAITING) for member in workers if member.id != late]
    return f"slowest: {late}, the others wait {percent(sum(waits) / len(waits))}", f"{late} slow"
