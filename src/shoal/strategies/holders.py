"""Who holds which stages, and computes which pieces in them. Pure, and the same on all members.

A worker holds the weights and the optimizer's state of its stages, so it keeps them from view to view (placement.py). A
stage that nobody holds any more is lost with its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import fsum, inf

from shoal.errors import UsageError
from shoal.strategies.balance import Balance

_FEW = 4096  # ways to deal stages that are all looked at

Holders = Mapping[str, tuple[int, ...]]  # the stages of each member, ascending


def deal(
    costs: Sequence[float], members: Sequence[str], speeds: Sequence[float] | None = None
) -> dict[str, tuple[int, ...]]:
    """The stages of every member at the start: neighbours hold the same stage, or, where there are fewer members than
    stages, neighbouring stages. `speeds`: of the members, where they are unequal.
    """
    stages, count = len(costs), len(members)
    if speeds is not None and len(set(speeds)) > 1:
        return _runs_by_speed(costs, members, speeds) if count < stages else _hands_by_speed(costs, members, speeds)
    if count < stages:
        bounds = [stages * rank // count for rank in range(count + 1)]
        return {member: tuple(range(bounds[rank], bounds[rank + 1])) for rank, member in enumerate(members)}
    hands = [1] * stages
    for _ in range(count - stages):
        # To the stage whose holders have most to do; of equals, to the first.
        slowest = max(range(stages), key=lambda stage: (costs[stage] / hands[stage], -stage))
        hands[slowest] += 1
    order = [stage for stage in range(stages) for _ in range(hands[stage])]
    return {member: (stage,) for member, stage in zip(members, order, strict=True)}


def stage_speeds(speeds: Sequence[float], stages: int) -> tuple[float, ...]:
    """How fast stages are computed together by members of these speeds, who are grouped so that all groups are about
    equally fast: what a model's cuts follow. In the order of the groups' first members.
    """
    if len(speeds) < stages:
        raise UsageError(f"{len(speeds)} speeds for {stages} stages: expected at least one for each stage")
    return tuple(fsum(speeds[rank] for rank in group) for group in _groups(speeds, stages))


def _groups(speeds: Sequence[float], stages: int) -> list[list[int]]:
    """About equally fast ones. The fastest first, each to the group that is slowest so far."""
    groups: list[list[int]] = [[] for _ in range(stages)]
    for rank in sorted(range(len(speeds)), key=lambda rank: (-speeds[rank], rank)):
        slowest = min(range(stages), key=lambda group: (fsum(speeds[one] for one in groups[group]), group))
        groups[slowest].append(rank)
    return sorted(groups, key=min)


def _hands_by_speed(
    costs: Sequence[float], members: Sequence[str], speeds: Sequence[float]
) -> dict[str, tuple[int, ...]]:
    """One stage for each member, so that the stage that takes longest takes little: of few members the best way there
    is; of many, equal groups of them, the fastest where most is to be done.
    """
    stages, count = len(costs), len(members)
    if stages**count <= _FEW:
        chosen = min(product(range(stages), repeat=count), key=lambda way: _times(costs, speeds, way))
    else:
        groups = sorted(_groups(speeds, stages), key=lambda group: -fsum(speeds[rank] for rank in group))
        order = sorted(range(stages), key=lambda stage: (-costs[stage], stage))
        of_rank = {rank: stage for group, stage in zip(groups, order, strict=True) for rank in group}
        chosen = tuple(of_rank[rank] for rank in range(count))
    return {member: (stage,) for member, stage in zip(members, chosen, strict=True)}


def _times(costs: Sequence[float], speeds: Sequence[float], way: Sequence[int]) -> list[float]:
    """What each stage takes, from the longest on: where the longest stays, less of the others is better."""
    hands = [0.0] * len(costs)
    for speed, stage in zip(speeds, way, strict=True):
        hands[stage] += speed
    return sorted((cost / hand if hand else inf for cost, hand in zip(costs, hands, strict=True)), reverse=True)


def _runs_by_speed(
    costs: Sequence[float], members: Sequence[str], speeds: Sequence[float]
) -> dict[str, tuple[int, ...]]:
    """Neighbouring stages for each member, at least one, so that the member that takes longest takes least."""
    stages = len(costs)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}  # by where the next one begins
    for rank, speed in enumerate(speeds):
        after = len(members) - rank - 1
        best = {
            stop: min(
                (max(longest, fsum(costs[start:stop]) / speed), (*bounds, stop))
                for start, (longest, bounds) in best.items()
                if start < stop
            )
            for stop in (range(rank + 1, stages - after + 1) if after else (stages,))
        }
    bounds = best[stages][1]
    return {member: tuple(range(bounds[rank], bounds[rank + 1])) for rank, member in enumerate(members)}


def may_leave(holders: Holders, stages: int, members: Sequence[str], wanting: Sequence[str]) -> tuple[str, ...]:
    """Those of `wanting` who can go, one after another, so that every stage is still held."""
    left, gone = list(members), []
    for member in wanting:
        rest = [one for one in left if one != member]
        if not lost_stages(holders, stages, rest):
            left = rest
            gone.append(member)
    return tuple(gone)


def lost_stages(holders: Holders, stages: int, members: Sequence[str]) -> list[int]:
    """The stages that none of these members holds."""
    return [stage for stage in range(stages) if not any(stage in holders.get(member, ()) for member in members)]


def share(
    holders: Holders, pieces: int, members: tuple[str, ...], balances: Sequence[Balance]
) -> tuple[tuple[range, ...], ...]:
    """Of each stage, by rank: the run of pieces that a rank computes. Those who hold a stage share its pieces, by their
    paces as the stage's `balance` knows them.
    """
    shared = []
    for stage, balance in enumerate(balances):
        ranks = [rank for rank, member in enumerate(members) if stage in holders.get(member, ())]
        if not ranks:
            raise UsageError(f"nobody holds stage {stage}")
        runs = balance.shares(pieces, tuple(members[rank] for rank in ranks))
        of_rank = dict(zip(ranks, runs, strict=True))
        shared.append(tuple(of_rank.get(rank, range(0)) for rank in range(len(members))))
    return tuple(shared)


def first_holder(holders: Holders, stage: int, members: Sequence[str]) -> int:
    """The rank that speaks for a stage."""
    return next(rank for rank, member in enumerate(members) if stage in holders.get(member, ()))
