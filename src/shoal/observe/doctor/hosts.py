"""Cores and memory that are not enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from shoal.observe.amounts import percent
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts, WorkerFacts
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import together

_NEARLY_ALL = 0.9  # of a host's memory


def cores(facts: RunFacts) -> Iterator[Finding]:
    """Every worker of this host lacks cores. Where one does, it is slower than the others.

    Of a run with no worker here: every worker.
    """
    workers = facts.here or facts.workers
    wanted = (len(workers) + facts.servers) * facts.threads
    too_many = facts.cores is not None and wanted > facts.cores
    if min(worker.starved for worker in workers) >= WORTH_IT:
        share = mean(worker.starved for worker in workers)
        lacking = f"ready to run, and had no core, {percent(share)} of the time"
        switches = sum(worker.counted.switches for worker in workers)
        lacking += f"; a core was taken away from them {switches:,} times"
    elif too_many and _waiting(workers) >= WORTH_IT and not any(worker.counted.starved for worker in workers):
        share = _waiting(workers)  # all that is known where the system does not tell more
        lacking = f"waiting for each other {percent(share)} of the time"
    else:
        return
    if too_many:
        who = f"{_members(facts, len(workers))} with {_threads(facts.threads)}"
        yield Finding(
            share,
            f"{who} share {facts.cores} cores: they were {lacking}",
            "Start as many workers as there are cores, or fewer with more `--threads`.",
            FindingKind.CORES,
        )
    else:
        yield Finding(
            share,
            f"other programs use the workers' cores: they were {lacking}",
            "`top` shows which. End them, or start fewer workers.",
            FindingKind.CORES,
        )


def memory(facts: RunFacts) -> Iterator[Finding]:
    used = sum(worker.memory for worker in facts.here)
    if facts.memory and used > _NEARLY_ALL * facts.memory:
        yield Finding(
            1.0,
            f"the workers use {used / 1e9:.1f} of this host's {facts.memory / 1e9:.1f} GB of memory",
            "The system will swap, or kill one. Start fewer workers, or load less in each.",
            FindingKind.MEMORY,
        )


def _waiting(workers: Sequence[WorkerFacts]) -> float:
    return together(worker.spent for worker in workers).share(TimeUse.WAITING)


def _members(facts: RunFacts, workers: int) -> str:
    servers = {0: "", 1: " and 1 server"}.get(facts.servers, f" and {facts.servers} servers")
    where = f" on {facts.host}" if workers < len(facts.workers) else ""
    return f"{workers} worker{'' if workers == 1 else 's'}{servers}{where}"


def _threads(number: int) -> str:
    return "1 thread each" if number == 1 else f"{number} threads each"


host_rules = (cores, memory)
