"""Workers that wait for one of them: it is slower, or has more to do. Only where all take every step together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from shoal.observe.amounts import duration, percent
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts, WorkerFacts
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import slowest

_SLOWER = 1.2  # times as long for a piece as the others
_MORE = 1.2  # times as many pieces as the others
_BURSTS = 0.75  # the spread of a piece's seconds, as a part of their mean
_MANY_FAULTS = 20  # pages from disk a second


def straggler(facts: RunFacts) -> Iterator[Finding]:
    late = _late(facts)
    if late is None or _has_more_to_do(late, _others(facts, late)):
        return
    others = _others(facts, late)
    waits = mean(worker.share(TimeUse.WAITING) for worker in others)
    yield Finding(
        waits * len(others) / len(facts.workers),
        f"{late.id} on {late.host or 'its host'} is slower: the others wait {percent(waits)} of the time, it waits "
        f"{percent(late.share(TimeUse.WAITING))}{_pace(late, others)}{_reason(late)}",
        f"{_remedy(late)} With {facts.pieces} pieces work moves in steps of 1/{facts.pieces}: more `--pieces` divide "
        "it more finely. Without `--pieces` Shoal tries that, and goes back where steps do not get shorter by it: "
        "`shoal story` says so.",
        FindingKind.STRAGGLER,
    )


def imbalance(facts: RunFacts) -> Iterator[Finding]:
    late = _late(facts)
    if late is None or not _has_more_to_do(late, _others(facts, late)):
        return
    others = _others(facts, late)
    waits = mean(worker.share(TimeUse.WAITING) for worker in others)
    yield Finding(
        waits * len(others) / len(facts.workers),
        f"{late.id} computes {_load(late):.1f} of the {facts.pieces} pieces of a step, the others "
        f"{mean(map(_load, others)):.1f}, and they are as fast: they wait for it {percent(waits)} of the time",
        f"{facts.pieces} pieces can't be divided evenly among {len(facts.workers)} workers. Use a multiple: "
        f"`--pieces {_multiple(facts)}`.",
        FindingKind.IMBALANCE,
    )


def _late(facts: RunFacts) -> WorkerFacts | None:
    """The one that the others wait for because it computes longer: not because it reads, or is in a callback."""
    if not facts.synchronous:
        return None
    id = slowest({worker.id: worker.spent for worker in facts.workers})
    late = next((worker for worker in facts.workers if worker.id == id), None)
    if late is None:
        return None
    others = _others(facts, late)
    waits_less = mean(worker.share(TimeUse.WAITING) for worker in others) - late.share(TimeUse.WAITING)
    computes_more = late.share(TimeUse.COMPUTING) - mean(worker.share(TimeUse.COMPUTING) for worker in others)
    return late if computes_more > waits_less / 2 else None


def _others(facts: RunFacts, late: WorkerFacts) -> list[WorkerFacts]:
    return [worker for worker in facts.workers if worker is not late]


def _load(worker: WorkerFacts) -> float:
    """Pieces in a step."""
    return worker.counted.pieces / worker.counted.steps if worker.counted.steps else 0.0


def _has_more_to_do(late: WorkerFacts, others: Sequence[WorkerFacts]) -> bool:
    is_slower = late.counted.piece_mean > _SLOWER * median(worker.counted.piece_mean for worker in others)
    return not is_slower and _load(late) > _MORE * mean(map(_load, others)) > 0


def _multiple(facts: RunFacts) -> int:
    workers = len(facts.workers)
    return workers * max(1, round(facts.pieces / workers))


def _pace(late: WorkerFacts, others: Sequence[WorkerFacts]) -> str:
    own, usual = late.counted.piece_mean, median(worker.counted.piece_mean for worker in others)
    if not own or not usual:
        return ""
    how = "in bursts" if late.counted.piece_spread > _BURSTS else "steadily"
    return f"; a piece takes it {duration(own)}, the others {duration(usual)}, {how}"


def _reason(late: WorkerFacts) -> str:
    if _swaps(late):
        return f". Its memory is being swapped: {late.counted.faults:,} pages had to come from disk"
    if late.starved >= WORTH_IT:
        return (
            f". It was ready to run and had no core {percent(late.starved)} of the time, which was taken away from it "
            f"{late.counted.switches:,} times"
        )
    return ""


def _remedy(late: WorkerFacts) -> str:
    if _swaps(late):
        return "Give its host less to do, or more memory."
    if late.starved >= WORTH_IT:
        return "Something else runs on its cores: end that, or give this worker others."
    return "Its cores are slower, or it has fewer of them."


def _swaps(worker: WorkerFacts) -> bool:
    return worker.counted.faults > _MANY_FAULTS * max(1.0, worker.seconds)


unequal_rules = (straggler, imbalance)
