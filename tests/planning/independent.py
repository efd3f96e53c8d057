"""A second opinion of what a step takes: a queue of events, written without a look at the planner's replay.

A worker has a list of jobs, done in order. A job begins when the worker is free and all that it waits for has come.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from shoal.planning.candidates import Kind, PlanCandidate
from shoal.planning.facts import LinkFacts
from shoal.strategies.placement import place

from .made_up import Layer, bounds_of

SMALL = 256 * 1024


class Job(NamedTuple):
    name: Hashable
    seconds: float
    waits: Mapping[Hashable, float] = {}  # for what, and how long that is on its way


def ended(workers: Sequence[Sequence[Job]]) -> dict[Hashable, float]:
    """When each job is over."""
    over: dict[Hashable, float] = {}
    doing = [0] * len(workers)
    free_at = [0.0] * len(workers)
    events = [(0.0, worker) for worker in range(len(workers))]
    waiting: set[int] = set()
    while events:
        now, worker = heapq.heappop(events)
        waiting.discard(worker)
        if doing[worker] == len(workers[worker]):
            continue
        job = workers[worker][doing[worker]]
        if any(other not in over for other in job.waits):
            waiting.add(worker)
            continue
        begins = max([now, free_at[worker], *(over[other] + way for other, way in job.waits.items())])
        over[job.name] = free_at[worker] = begins + job.seconds
        doing[worker] += 1
        for other in (worker, *waiting):
            heapq.heappush(events, (free_at[worker], other))
    assert doing == [len(jobs) for jobs in workers], "the workers wait for each other for ever"
    return over


def seconds_of(
    candidate: PlanCandidate,
    layers: Sequence[Layer],
    speeds: Sequence[float],
    batch: int,
    link: LinkFacts,
    update: float,
) -> float:
    """One step, from commit to commit."""
    if candidate.kind is Kind.PIPELINE:
        return _pipeline(candidate, layers, speeds, batch, link, update) + 5e-4
    return _together(candidate, layers, speeds, batch, link, update) + 5e-4


def _together(
    candidate: PlanCandidate,
    layers: Sequence[Layer],
    speeds: Sequence[float],
    batch: int,
    link: LinkFacts,
    update: float,
) -> float:
    workers, pieces = len(speeds), min(candidate.pieces, batch)
    weights = float(sum(layer.weights for layer in layers))
    is_sliced = candidate.kind is Kind.SLICED
    rows = _sizes(batch, pieces)
    piece = sum(sum(layer.passes(rows[0])) for layer in layers)
    updates = [1.05 * update * weights / sum(speeds) if is_sliced else update * weights / speed for speed in speeds]
    counts = _dealt(pieces, [piece / speed for speed in speeds], updates)
    jobs, first = [], 0
    for worker, count in enumerate(counts):
        mine = [Job(("update", worker), updates[worker])]
        for number in range(first, first + count):
            seconds = sum(sum(layer.passes(rows[number])) for layer in layers) / speeds[worker]
            if count == 1:
                seconds += weights * (workers - 1) / workers / link.copying
            else:
                seconds += weights / (link.copying if number == first else link.adding)
            mine.append(Job(number, seconds))
        first += count
        jobs.append(mine)
    slots = [_partial_sums(sum(counts[:worker]), count, pieces) for worker, count in enumerate(counts)]
    last = max(ended(jobs).values())
    exchange = _exchanged(weights, slots, link)
    if is_sliced:
        exchange += link.latency
        exchange += weights * (workers - 1) / workers / link.bandwidth if link.bandwidth else 0.0
    return last + exchange


def _pipeline(
    candidate: PlanCandidate,
    layers: Sequence[Layer],
    speeds: Sequence[float],
    batch: int,
    link: LinkFacts,
    update: float,
) -> float:
    stages, pieces = candidate.stages, min(candidate.pieces, batch)
    bounds = bounds_of(layers, stages)
    parts = [layers[bounds[stage] : bounds[stage + 1]] for stage in range(stages)]
    weights = [float(sum(layer.weights for layer in part)) for part in parts]
    rows = _sizes(batch, pieces)
    placed = place([sum(layer.forward for layer in part) for part in parts], [str(n) for n in range(len(speeds))], True)
    holders = [[n for n in range(len(speeds)) if placed.computes[str(n)] == (stage,)] for stage in range(stages)]
    mine: dict[int, list[int]] = {}
    for group in holders:
        counts = _dealt(pieces, [1 / speeds[worker] for worker in group], [0.0] * len(group))
        for worker, first, count in zip(group, _starts(counts), counts, strict=True):
            mine[worker] = list(range(first, first + count))
    jobs: list[list[Job]] = []
    for worker, speed in enumerate(speeds):
        stage = next(number for number, group in enumerate(holders) if worker in group)
        jobs.append([Job(("update", worker), update * sum(weights[held] for held in placed.of(str(worker))) / speed)])
        for is_back, piece in _one_forward_one_backward(mine[worker], stages - stage):
            forward, back = (sum(layer.passes(rows[piece])[way] for layer in parts[stage]) for way in (0, 1))
            sent = parts[stage][-1].sends * rows[piece] if stage < stages - 1 else 0.0
            came = parts[stage - 1][-1].sends * rows[piece] if stage else 0.0
            waits: dict[Hashable, float] = {}
            if not is_back:
                seconds = forward / speed + sent / link.copying + link.latency
                if stage:
                    waits[False, stage - 1, piece] = _way(came, link)
            else:
                seconds = back / speed + came / link.copying + weights[stage] / link.adding + link.latency
                waits[False, stage, piece] = 0.0
                if stage < stages - 1:
                    waits[True, stage + 1, piece] = _way(sent, link)
            jobs[-1].append(Job((is_back, stage, piece), seconds, waits))
    over = ended(jobs)
    summed = []
    for stage, group in enumerate(holders):
        everybody = [worker for worker in range(len(speeds)) if stage in placed.of(str(worker))]  # copies too
        runs = [mine[worker] if worker in group else [] for worker in everybody]
        slots = [_partial_sums(run[0], len(run), pieces) if run else 0 for run in runs]
        last = max(over[jobs[worker][-1].name] for worker in everybody)
        summed.append(last + _exchanged(weights[stage], slots, link))
    return max(summed) + link.latency


def _way(nbytes: float, link: LinkFacts) -> float:
    return link.latency + (nbytes / link.bandwidth if link.bandwidth else 0.0)


def _one_forward_one_backward(pieces: Sequence[int], ahead: int) -> list[tuple[bool, int]]:
    order, back = [], 0
    for done, piece in enumerate(pieces):
        if done >= ahead:
            order.append((True, pieces[back]))
            back += 1
        order.append((False, piece))
    return order + [(True, piece) for piece in pieces[back:]]


def _exchanged(nbytes: float, slots: Sequence[int], link: LinkFacts) -> float:
    workers = len(slots)
    if workers == 1:
        return 0.0
    adds = nbytes * sum(slots) / link.adding
    seconds = link.latency + adds if nbytes <= SMALL else 2 * link.latency + adds / workers
    crossing = nbytes * (workers - 1) / workers * (max(slots) + 1)
    return seconds + (crossing / link.bandwidth if link.bandwidth else 0.0)


def _partial_sums(first: int, count: int, pieces: int) -> int:
    """Of how many nodes of a binary tree over all pieces a run of them is made."""

    def nodes(low: int, high: int) -> int:
        if first <= low and high <= first + count:
            return 1
        if high <= first or first + count <= low:
            return 0
        middle = low + _half(high - low)
        return nodes(low, middle) + nodes(middle, high)

    return nodes(0, pieces)


def _half(count: int) -> int:
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def _dealt(pieces: int, paces: Sequence[float], fixed: Sequence[float]) -> list[int]:
    """How many each gets so that the last is done soonest; everybody one, if there are enough."""
    counts = [1 if pieces >= len(paces) else 0] * len(paces)
    while sum(counts) < pieces:
        done = [fixed[n] + (counts[n] + 1) * paces[n] for n in range(len(paces))]
        counts[done.index(min(done))] += 1
    return counts


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:place]) for place in range(len(counts))]


def _sizes(batch: int, pieces: int) -> list[int]:
    return [batch // pieces + (piece < batch % pieces) for piece in range(pieces)]
