"""How a run goes on, in one line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.figures import pace
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.amounts import percent
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import slowest, together

_COMING = ("starting", "joined", "ready")  # or standing by


def progress(reply: StatusReply) -> str:
    """Empty before the first step."""
    workers = [member for member in reply.members if member.role == "worker" and member.state == "training"]
    step = max((member.step for member in workers), default=0)
    if not step:
        return ""
    coming = sum(member.role == "worker" and member.state in _COMING for member in reply.members)
    wanted = reply.wanted or len(workers) + coming
    told = [
        f"{len(workers)} of {wanted} workers" if len(workers) < wanted else f"{len(workers)} workers",
        *([f"{coming} standing by"] if coming and len(workers) >= wanted else []),
        f"step {step:,}",
        f"{pace(workers):,.0f} samples/s",
        *([f"{reply.losses} lost"] if reply.losses else []),
        *([f"checkpoint of step {saved:,}"] if (saved := max(member.counted.saved for member in workers)) else []),
        *_slowest(workers),
        *([shares] if (shares := str(together(member.spent for member in workers))) else []),
    ]
    return " · ".join(told)


def _slowest(workers: Sequence[MemberStatus]) -> list[str]:
    """The one that is waited for, and by how much, if there is one."""
    late = slowest({member.id: member.spent for member in workers})
    if late is None:
        return []
    waits = [member.spent.share(TimeUse.WAITING) for member in workers if member.id != late]
    return [f"slowest: {late}, the others wait {percent(sum(waits) / len(waits))}"]
