"""What it costs to work together: gradients on their way, servers that are waited for, pieces that are too small."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.observe.amounts import amount, duration, percent
from shoal.observe.doctor.facts import WORTH_IT, Finding, FindingKind, RunFacts, WorkerFacts
from shoal.observe.phases import TimeUse

# Seconds of a piece, and of one with few rows: about what it takes to call a backend at all.
_SHORT, _SHORT_FOR_FEW = 0.002, 0.01
_FEW = 16  # rows
_MUCH_FOR_SERVERS = 0.25  # to ask and be answered takes some, where nothing is wrong
_OF_CALLING = 0.5  # of such a piece's time, at least


def exchanging(facts: RunFacts) -> Iterator[Finding]:
    share = facts.share(TimeUse.EXCHANGING)
    if share < WORTH_IT:
        return
    busiest = max(facts.workers, key=lambda worker: worker.counted.sent)
    yield Finding(
        share,
        f"exchanging gradients takes {percent(share)} of the time{_on_the_way(busiest)}",
        f"A batch twice as large computes twice as much for each exchange: about {percent(_gain(share))} more samples "
        f"a second. {_remedy(busiest, share)}",
        FindingKind.EXCHANGE,
    )


def servers(facts: RunFacts) -> Iterator[Finding]:
    """Of asynchronous training: who waits there waits for servers."""
    share = facts.share(TimeUse.WAITING)
    if facts.synchronous or share < _MUCH_FOR_SERVERS:
        return
    busiest = max(facts.workers, key=lambda worker: worker.counted.sent + worker.counted.shared)
    yield Finding(
        share,
        f"the workers wait for the servers {percent(share)} of the time{_on_the_way(busiest)}",
        f"More `--servers` share the work. A batch twice as large asks them half as often: about "
        f"{percent(_gain(share))} more samples a second.",
        FindingKind.SERVERS,
    )


def small_pieces(facts: RunFacts) -> Iterator[Finding]:
    """Every piece is a call of the backend, which takes its time however few rows it has."""
    worker = max(facts.workers, key=lambda worker: worker.counted.pieces)
    counted = worker.counted
    if not counted.steps or not counted.pieces:
        return
    load, rows = counted.pieces / counted.steps, counted.rows / counted.pieces
    seconds = counted.piece_mean * (1 - worker.starved)  # without what it waited for a core
    if seconds > (_SHORT_FOR_FEW if rows <= _FEW else _SHORT):
        return
    lost = worker.share(TimeUse.COMPUTING) * (1 - 1 / max(1.0, load)) * _OF_CALLING
    if lost < WORTH_IT:
        return
    yield Finding(
        lost,
        f"the pieces are small: {worker.id} computes {load:.0f} of {facts.pieces} in a step, of "
        f"{_rows(rows)} and {duration(seconds)} each, much of which is spent on calling the backend",
        f"Fewer pieces: without `--pieces` there are as many as workers, {len(facts.workers)}, unless their speeds "
        "differ. Or a larger batch.",
        FindingKind.SMALL_PIECES,
    )


def _rows(number: float) -> str:
    return "1 row" if round(number) == 1 else f"{number:.0f} rows"


def _on_the_way(worker: WorkerFacts) -> str:
    counted = worker.counted
    if not counted.steps:
        return ""
    if counted.arriving and counted.arrived:
        return (
            f": {worker.id} sends {amount(counted.sent / counted.steps)} a step, and what it waits for comes at "
            f"{amount(counted.arrived / counted.arriving)} a second"
        )
    by_memory = f"{amount(counted.shared / counted.steps)} a step through shared memory"
    return f": {worker.id} gives the others {by_memory}" if counted.shared else ""


def _gain(share: float, gone: float = 0.5) -> float:
    """Of samples per second, if so much of it were gone."""
    return 1 / (1 - min(share, 0.99) * gone) - 1


def _remedy(worker: WorkerFacts, share: float) -> str:
    if worker.counted.arrived:
        return f"{_fewer_bytes(worker, share)}Or a faster link; or fewer hosts, with more workers on each."
    return "On one host, fewer workers with more `--threads` each exchange less."


def _fewer_bytes(worker: WorkerFacts, share: float) -> str:
    """What a codec would give: it shortens what is waited for on the link. Nothing where there is one already."""
    if worker.counted.spared:
        return ""
    on_link = min(share, worker.part(worker.counted.arriving))
    gains = [percent(_gain(on_link, gone)) for gone in (0.5, 0.75)]
    return (
        f"`--compress bf16` sends half of the bytes (about {gains[0]} more), `--compress int8` a quarter of them "
        f"(about {gains[1]} more). "
    )


exchange_rules = (exchanging, servers, small_pieces)
