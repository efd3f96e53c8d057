"""What there is to judge of a run, of what its coordinator says."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from shoal.cluster.messages import StatusReply
from shoal.observe.doctor import RunFacts, WorkerFacts

_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def facts_of(reply: StatusReply) -> RunFacts:
    """What is to be judged of what a coordinator says."""
    trained = ("training", "finished")
    workers = [member for member in reply.members if member.role == "worker" and member.state in trained]
    host = platform.node()
    here = any(member.host == host for member in workers)
    return RunFacts(
        tuple(
            WorkerFacts(member.id, member.host, member.spent, member.memory, member.counted, reply.threads)
            for member in workers
        ),
        reply.pieces,
        reply.threads,
        os.cpu_count() if here else None,
        _memory() if here else None,
        not any(member.counted.asynchronous for member in workers),
        sum(member.role == "server" and member.host == host for member in reply.members),
        host,
    )


def _memory() -> int:
    """Bytes that this host has, or that a container on it may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": there is none
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits)
