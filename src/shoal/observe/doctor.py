"""What limits a run: findings from facts, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares, slowest, together

_WORTH_IT = 0.15  # of the time: less than that is not worth anybody's while
_MUCH_FOR_CALLBACKS = 0.25  # the progress bar of a tiny model takes some
_NEARLY_ALL = 0.9  # of a host's memory


class WorkerFacts(msgspec.Struct, frozen=True):
    """What is known of a worker."""

    id: str
    host: str
    spent: TimeShares
    memory: int = 0  # resident bytes


class RunFacts(msgspec.Struct, frozen=True):
    """What is known of a run."""

    workers: tuple[WorkerFacts, ...]
    pieces: int
    threads: int  # of each worker
    cores: int | None = None  # of this host, on which all workers are
    memory: int | None = None  # of this host, on which all workers are


class Finding(msgspec.Struct, frozen=True):
    """One thing that costs time, or may end the run."""

    lost: float  # the share of the workers' time that it costs
    what: str  # with the figures behind it
    advice: str


def examine(facts: RunFacts) -> list[Finding]:
    """The worst first; none if nothing stands out."""
    if not any(worker.spent.seconds for worker in facts.workers):
        return []
    rules = (_memory, _reading, _callbacks, _straggler, _crowded, _exchanging)
    return sorted((finding for rule in rules for finding in rule(facts)), key=lambda finding: -finding.lost)


def _share(facts: RunFacts, use: TimeUse) -> float:
    return together(worker.spent for worker in facts.workers).share(use)


def _reading(facts: RunFacts) -> Iterator[Finding]:
    share = _share(facts, TimeUse.READING)
    shares = {worker.id: worker.spent.share(TimeUse.READING) for worker in facts.workers}
    worst = max(shares, key=lambda id: shares[id])
    if max(share, shares[worst] / 2) < _WORTH_IT:
        return
    alone = len(shares) > 1 and shares[worst] - _second(list(shares.values())) > _WORTH_IT
    who = f"{worst} waits for data" if alone else "the workers wait for data"
    yield Finding(
        max(share, shares[worst] if alone else 0.0),
        f"{who} {_percent(shares[worst] if alone else share)} of the time",
        "Read faster: more threads or processes in the loader, a cache, `prefetch`, larger files. A stream or a "
        "generator is read by the chief alone; of arrays and a `PyDataset` every worker reads its own part.",
    )


def _callbacks(facts: RunFacts) -> Iterator[Finding]:
    share = _share(facts, TimeUse.CALLBACKS)
    if share >= _MUCH_FOR_CALLBACKS:
        yield Finding(
            share,
            f"callbacks take {_percent(share)} of the time",
            "Do less in them, or not after every batch; `shoal story` and a long wait show which one. With very small "
            "steps Keras's own progress bar is a part of it: `verbose=2` prints one line an epoch.",
        )


def _straggler(facts: RunFacts) -> Iterator[Finding]:
    waits = {worker.id: worker.spent.share(TimeUse.WAITING) for worker in facts.workers}
    late = slowest({worker.id: worker.spent for worker in facts.workers})
    if late is None:
        return
    others = [share for id, share in waits.items() if id != late]
    host = next(worker.host for worker in facts.workers if worker.id == late)
    yield Finding(
        sum(others) / len(waits),
        f"{late} on {host or 'its host'} is slower: the others wait {_percent(sum(others) / len(others))} of the "
        f"time, it waits {_percent(waits[late])}",
        f"See what else runs on its cores. With {facts.pieces} pieces work moves in steps of 1/{facts.pieces}: more "
        "`--pieces` divide it more finely, and without `--pieces` Shoal does so itself.",
    )


def _crowded(facts: RunFacts) -> Iterator[Finding]:
    wanted = len(facts.workers) * facts.threads
    waiting = _share(facts, TimeUse.WAITING)
    if facts.cores is not None and wanted > facts.cores and waiting >= _WORTH_IT:
        yield Finding(
            waiting,
            f"{len(facts.workers)} workers with {facts.threads} threads each share {facts.cores} cores: they wait for "
            f"each other {_percent(waiting)} of the time",
            "Start as many workers as there are cores, or fewer with more `--threads`.",
        )


def _exchanging(facts: RunFacts) -> Iterator[Finding]:
    share = _share(facts, TimeUse.EXCHANGING)
    if share >= _WORTH_IT:
        yield Finding(
            share,
            f"exchanging gradients takes {_percent(share)} of the time",
            "A larger batch computes more for each exchange. Between hosts, a faster link; on one host, fewer workers "
            "with more `--threads` each.",
        )


def _memory(facts: RunFacts) -> Iterator[Finding]:
    used = sum(worker.memory for worker in facts.workers)
    if facts.memory and used > _NEARLY_ALL * facts.memory:
        yield Finding(
            1.0,
            f"the workers use {used / 1e9:.1f} of this host's {facts.memory / 1e9:.1f} GB of memory",
            "The system will swap, or kill one. Start fewer workers, or load less in each.",
        )


def _second(shares: Sequence[float]) -> float:
    return sorted(shares)[-2]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
