"""Cores and memory that are not enough."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from shoal.observe.amounts import percent
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts
from shoal.observe.phases import TimeUse

_NEARLY_ALL = 0.9  # of a host's memory


def cores(facts: RunFacts) -> Iterator[Finding]:
    """Every worker lacks cores. Where one does, it is slower than the others."""
    wanted = (len(facts.workers) + facts.servers) * facts.threads
    too_many = facts.cores is not None and wanted > facts.cores
    if min(worker.starved for worker in facts.workers) >= WORTH_IT:
        share = mean(worker.starved for worker in facts.workers)
        lacking = f"ready to run, and had no core, {percent(share)} of the time"
        switches = sum(worker.counted.switches for worker in facts.workers)
        lacking += f"; a core was taken away from them {switches:,} times"
    elif too_many and facts.share(TimeUse.WAITING) >= WORTH_IT and not any(w.counted.starved for w in facts.workers):
        share = facts.share(TimeUse.WAITING)  # all that is known where the system does not tell more
        lacking = f"waiting for each other {percent(share)} of the time"
    else:
        return
    if too_many:
        yield Finding(
            share,
            f"{_members(facts)} with {_threads(facts.threads)} share {facts.cores} cores: they were {lacking}",
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
    used = sum(worker.memory for worker in facts.workers)
    if facts.memory and used > _NEARLY_ALL * facts.memory:
        yield Finding(
            1.0,
            f"the workers use {used / 1e9:.1f} of this host's {facts.memory / 1e9:.1f} GB of memory",
            "The system will swap, or kill one. Start fewer workers, or load less in each.",
            FindingKind.MEMORY,
        )


def _members(facts: RunFacts) -> str:
    servers = {0: "", 1: " and 1 server"}.get(facts.servers, f" and {facts.servers} servers")
    return f"{len(facts.workers)} worker{'' if len(facts.workers) == 1 else 's'}{servers}"


def _threads(number: int) -> str:
    return "1 thread each" if number == 1 else f"{number} threads each"


host_rules = (cores, memory)
