"""Who holds which stages, and computes which pieces in them. Pure, and the same on all members.

A worker holds the weights and the optimizer's state of its stages, so it keeps them from view to view (placement.py). A
stage that nobody holds any more is lost with its state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.errors import UsageError
from shoal.strategies.balance import Balance

Holders = Mapping[str, tuple[int, ...]]  # the stages of each member, ascending


def deal(costs: Sequence[float], members: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The stages of every member at the start: neighbours hold the same stage, or, where there are fewer members than
    stages, neighbouring stages.
    """
    stages, count = len(costs), len(members)
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
