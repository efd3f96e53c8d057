"""What there is to judge of a run, of what its coordinator says."""

from __future__ import annotations

import os
import platform

from shoal.cluster.messages import StatusReply
from shoal.observe.doctor import RunFacts, WorkerFacts


def facts_of(reply: StatusReply) -> RunFacts:
    """What is to be judged of what a coordinator says."""
    trained = ("training", "finished")
    workers = [member for member in reply.members if member.role == "worker" and member.state in trained]
    here = all(member.host == platform.node() for member in workers)
    return RunFacts(
        tuple(WorkerFacts(member.id, member.host, member.spent, member.memory) for member in workers),
        reply.pieces,
        reply.threads,
        os.cpu_count() if here else None,
        _memory() if here else None,
    )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
