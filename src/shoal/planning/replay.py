"""A step of a candidate, replayed as discrete events: how long it takes, who is busy, what moves, what must be held.

A step is taken from one commit to the next: every worker updates its weights, computes its pieces, and exchanges with
the others. What one does while another is still busy is not waited for, so the slowest way through counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import msgspec

from shoal.collectives.tree import cover
from shoal.data.order import piece_bounds, pieces_of
from shoal.planning.candidates import Kind, PlanCandidate, cut_of
from shoal.planning.facts import CutFacts, LinkFacts, PlanFacts, StageFacts, at_rows
from shoal.strategies.balance import Balance, WorkerPace
from shoal.strategies.holders import share
from shoal.strategies.placement import StagePlacement, place
from shoal.strategies.schedule import Action, Held, Pass, actions_of, replay

_SMALL = 256 << 10  # bytes: vectors up to there are added up by everybody, in one round instead of two


class Prediction(msgspec.Struct, frozen=True):
    """What a step is expected to be like."""

    seconds: float
    busy: tuple[float, ...]  # by worker: the part of the step in which it computes
    moved: float  # bytes from worker to worker
    memory: tuple[float, ...]  # by worker: bytes at the most


def predict(facts: PlanFacts, candidate: PlanCandidate, placement: StagePlacement | None = None) -> Prediction:
    """Replays one step of a candidate. `placement`: who holds which stages, if not as it would begin."""
    if candidate.kind is Kind.PIPELINE:
        return _in_stages(facts, cut_of(facts, candidate), candidate.pieces, placement)
    if candidate.kind is Kind.MESH:
        whole = next(one.whole for one in facts.meshes if one.mesh == candidate.mesh)
    else:
        assert facts.whole is not None, "only what was measured is a candidate"
        whole = facts.whole
    return _together(facts, whole, candidate.pieces, candidate.kind is Kind.SLICED)


# Data parallel --------------------------------------------------------------------------------------------


def _together(facts: PlanFacts, whole: StageFacts, pieces: int, sliced: bool) -> Prediction:
    pieces = pieces_of(facts.batch, pieces)
    rows = _rows(facts.batch, pieces)
    members, speeds, link = _members(facts), facts.speeds, facts.link
    count, nbytes = len(members), whole.gradients
    fixed = [_update(facts, whole, rank, sliced) for rank in range(count)]
    shares = _shares(facts, whole, pieces, fixed)
    slots = [len(cover(pieces, run)) for run in shares]
    busy, memory = [], []
    for rank, run in enumerate(shares):
        computing = fsum(fsum(at_rows(whole.times, rows[piece])[:2]) for piece in run) / speeds[rank]
        busy.append(fixed[rank] + computing + filling(link, nbytes, len(run), count))
        kept = max((at_rows(whole.times, rows[piece])[2] for piece in run), default=0.0)
        own = facts.base + whole.weights + whole.optimizer + kept
        memory.append(own + nbytes * (1 + slots[rank]) + nbytes / count + (_shared(whole) / count if sliced else 0.0))
    exchanging = _exchange(link, nbytes, slots)
    if sliced:
        exchanging += link.latency + _crossing(link, whole.weights * (count - 1) / count)
    seconds = max(busy) + exchanging + facts.overhead
    added = fsum(_adding(link, nbytes, slots)) / count if count > 1 else 0.0
    moved = _moved(nbytes, slots) + (whole.weights * (count - 1) if sliced else 0)
    return Prediction(seconds, tuple((one + added) / seconds for one in busy), moved, tuple(memory))


def _shares(facts: PlanFacts, whole: StageFacts, pieces: int, fixed: Sequence[float]) -> tuple[range, ...]:
    members, rows = _members(facts), _rows(facts.batch, pieces)
    per_row = fsum(at_rows(whole.times, rows[0])[:2]) / rows[0]
    return _balance(facts, members, per_row, fixed).shares(pieces, members, facts.batch)


def _update(facts: PlanFacts, whole: StageFacts, rank: int, sliced: bool) -> float:
    """Seconds that a worker's own part of the update takes. Slices follow the speeds."""
    if sliced:
        return whole.sliced / fsum(facts.speeds) + whole.adopting / facts.speeds[rank]
    return whole.update / facts.speeds[rank]


def _shared(whole: StageFacts) -> int:
    """What the workers of a host share for a sliced update: weights twice, and the optimizer's state."""
    return 2 * whole.weights + whole.optimizer


def filling(link: LinkFacts, nbytes: float, pieces: int, workers: int) -> float:
    """A worker's gradients on their way into its partial sums. Of a single piece only what others add up is copied."""
    if workers == 1 and pieces == 1:
        return nbytes / link.copying
    if pieces == 1:
        return nbytes * (workers - 1) / workers / link.copying
    return nbytes / link.copying + max(0, pieces - 1) * nbytes / link.adding


# The exchange ---------------------------------------------------------------------------------------------


def _exchange(link: LinkFacts, nbytes: float, slots: Sequence[int]) -> float:
    """From the last worker's coming to the total on all of them."""
    workers = len(slots)
    if workers == 1:
        return 0.0
    rounds = 1 if nbytes <= _SMALL else 2
    crossing = _crossing(link, nbytes * (workers - 1) / workers * (max(slots) + 1))
    return rounds * link.latency + max(_adding(link, nbytes, slots)) + crossing


def _adding(link: LinkFacts, nbytes: float, slots: Sequence[int]) -> list[float]:
    """Seconds in which each worker adds up its slice of all partial sums."""
    part = nbytes if nbytes <= _SMALL else nbytes / len(slots)
    return [part * sum(slots) / link.adding] * len(slots)


def _crossing(link: LinkFacts, nbytes: float) -> float:
    """On the way between hosts. Memory that all share is written and read in place."""
    return nbytes / link.bandwidth if link.bandwidth is not None else 0.0


def _moved(nbytes: float, slots: Sequence[int]) -> float:
    """Bytes that cross from worker to worker: partial sums to who adds them, totals to all."""
    workers = len(slots)
    return sum(slots) * nbytes * (workers - 1) / workers + nbytes * (workers - 1)


# Pipelines ------------------------------------------------------------------------------------------------


def placed(facts: PlanFacts, cut: CutFacts, members: Sequence[str]) -> StagePlacement:
    """Who holds which stages, with workers of these speeds."""
    return place(cut.costs, members, copies=True, speeds=facts.speeds)


def _in_stages(facts: PlanFacts, cut: CutFacts, pieces: int, placement: StagePlacement | None) -> Prediction:
    pieces = pieces_of(facts.batch, pieces)
    rows = _rows(facts.batch, pieces)
    members, speeds, link = _members(facts), facts.speeds, facts.link
    stages, ranks = cut.stages, range(len(members))
    if placement is None:
        placement = place(cut.costs, members, copies=True, speeds=cut.speeds or None)
    else:  # ranks are all that the replay knows
        members = tuple(placement.computes)
    holds = placement.holds
    held = _held_pieces(facts, cut, placement, pieces, members)
    schedule = [actions_of(held, rank) for rank in ranks]
    holding = [[rank for rank in ranks if stage in holds[members[rank]]] for stage in range(len(stages))]

    def seconds(action: Action, rank: int) -> float:
        stage = stages[action.stage]
        forward, backward, _ = at_rows(stage.times, rows[action.piece])
        if action.kind is Pass.FORWARD:
            return forward / speeds[rank] + _boundary(stage, rows[action.piece]) / link.copying + link.latency
        back = _received(stages, action.stage, rows[action.piece]) / link.copying
        return backward / speeds[rank] + back + stage.gradients / link.adding + link.latency

    def hop(before: Action, after: Action) -> float:
        maker, taker = (before, after) if before.stage < after.stage else (after, before)
        between = fsum(size for stage, size in stages[maker.stage].sends if stage == taker.stage)
        if not between and taker.stage - maker.stage > 1:
            return 0.0  # nothing goes from one to the other
        return link.latency + _crossing(link, between * rows[before.piece])

    updates = [
        fsum(stages[stage].update for stage in holds[member]) / speeds[rank] for rank, member in enumerate(members)
    ]
    replayed = replay(schedule, len(stages), seconds, hop, updates)
    ends = [
        max((replayed.begun[action] + seconds(action, rank) for action in actions[-1:]), default=updates[rank])
        for rank, actions in enumerate(schedule)
    ]
    slots = [[len(cover(pieces, held[stage][rank])) for rank in holding[stage]] for stage in range(len(stages))]
    summed = [
        max(ends[rank] for rank in holding[stage]) + _exchange(link, stages[stage].gradients, slots[stage])
        for stage in range(len(stages))
    ]
    whole = max(summed) + link.latency + facts.overhead  # with the metrics' exchange all go on
    busy = tuple((replayed.busy[rank] + updates[rank]) / whole for rank in ranks)
    moved = _boundaries(stages, held, rows) + fsum(
        _moved(one.gradients, many) for one, many in zip(stages, slots, strict=True) if len(many) > 1
    )
    memory = [_held(facts, cut, placement, members[rank], schedule[rank], rows) for rank in ranks]
    return Prediction(whole, busy, moved, tuple(memory))


def _held_pieces(
    facts: PlanFacts, cut: CutFacts, placement: StagePlacement, pieces: int, members: tuple[str, ...]
) -> Held:
    balances = [_balance(facts, members, 1.0, [0.0] * len(members)) for _ in cut.stages]
    return share(placement.computes, pieces, members, balances)


def _boundary(stage: StageFacts, rows: int) -> float:
    """Bytes that a stage sends on for a piece."""
    return fsum(size for _, size in stage.sends) * rows


def _received(stages: Sequence[StageFacts], number: int, rows: int) -> float:
    return fsum(size for stage in stages for taker, size in stage.sends if taker == number) * rows


def _boundaries(stages: Sequence[StageFacts], held: Held, rows: Sequence[int]) -> float:
    """Bytes that cross from worker to worker, forward and as gradients back."""

    def owner(stage: int, piece: int) -> int:
        return next(rank for rank, run in enumerate(held[stage]) if piece in run)

    return fsum(
        2 * size * count
        for piece, count in enumerate(rows)
        for number, stage in enumerate(stages)
        for taker, size in stage.sends
        if owner(number, piece) != owner(taker, piece)
    )


def _held(
    facts: PlanFacts,
    cut: CutFacts,
    placement: StagePlacement,
    member: str,
    actions: Sequence[Action],
    rows: Sequence[int],
) -> float:
    """The most that a worker holds at a time: what it always needs, and the activations of pieces on their way."""
    now = most = 0.0
    for kind, stage, piece in actions:
        kept = at_rows(cut.stages[stage].times, rows[piece])[2]
        now += kept if kind is Pass.FORWARD else -kept
        most = max(most, now)
    own = fsum(_state(cut.stages[stage]) + cut.stages[stage].gradients for stage in placement.of(member))
    own += fsum(2 * cut.stages[stage].gradients for stage in placement.computes[member])  # a piece's, and their sum
    at_end = fsum(_state(stage) for stage in cut.stages)  # when fit ends, everybody gets everything once
    return facts.base + max(own + most, at_end)


def _state(stage: StageFacts) -> float:
    return stage.weights + stage.optimizer


# Workers --------------------------------------------------------------------------------------------------


def _members(facts: PlanFacts) -> tuple[str, ...]:
    return tuple(f"worker-{rank}" for rank in range(facts.workers))


def _balance(facts: PlanFacts, members: Sequence[str], per_row: float, fixed: Sequence[float]) -> Balance:
    """As the workers will have found out after some steps: what each takes for a row, and for its update."""
    return Balance(
        {
            member: WorkerPace(1.0 / speed, 1.0 / speed, used_fixed=update / per_row)
            for member, speed, update in zip(members, facts.speeds, fixed, strict=True)
        }
    )


def _rows(batch: int, pieces: int) -> list[int]:
    bounds = piece_bounds(batch, pieces)
    return [bounds[piece + 1] - bounds[piece] for piece in range(pieces)]
