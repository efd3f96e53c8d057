"""How a run goes on, in one line. Pure."""

from __future__ import annotations

from shoal.cluster.figures import pace
from shoal.cluster.messages import StatusReply
from shoal.observe.time_shares import slowest, together

_COMING = ("starting", "joined", "ready")


def progress(reply: StatusReply) -> str:
    """Empty before the first step."""
    workers = [member for member in reply.members if member.role == "worker" and member.state == "training"]
    step = max((member.step for member in workers), default=0)
    if not step:
        return ""
    coming = sum(member.role == "worker" and member.state in _COMING for member in reply.members)
    told = [
        f"{len(workers)} of {len(workers) + coming} workers" if coming else f"{len(workers)} workers",
        f"step {step:,}",
        f"{pace(reply, workers):,.0f} samples/s",
        *([f"{reply.losses} lost"] if reply.losses else []),
        *([f"slowest: {late}"] if (late := slowest({member.id: member.spent for member in workers})) else []),
        *([shares] if (shares := str(together(member.spent for member in workers))) else []),
    ]
    return " · ".join(told)
