"""Who computes which stages, and who keeps a copy of which, from view to view. Pure, and the same on all members.

A stage's weights and its optimizer's state are only with those who hold it. Who computes a stage holds it. Where copies
are wanted, a stage that one member computes is also kept by another: a keeper takes part in the stage's sums and
updates, and computes no pieces, until whoever computed them is lost.

    a computing member is lost     the others that compute the stage do its pieces; else its keeper computes it now
    a newcomer comes               it computes the stage whose members have most to do; who did that besides a stage
                                   of its own goes back to keeping it
    a stage has one holder left    somebody else gets a copy, if copies are wanted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from shoal.strategies.holders import deal, lost_stages

_Stages = dict[str, tuple[int, ...]]


class StagePlacement(msgspec.Struct, frozen=True):
    """The stages of each member, ascending."""

    computes: Mapping[str, tuple[int, ...]] = {}
    keeps: Mapping[str, tuple[int, ...]] = {}

    @property
    def holds(self) -> _Stages:
        """What each member has the newest state of."""
        return {member: tuple(sorted({*own, *self.keeps.get(member, ())})) for member, own in self.computes.items()}

    def of(self, member: str) -> tuple[int, ...]:
        return self.holds.get(member, ())


class Move(NamedTuple):
    """A stage that some ranks get from another."""

    stage: int
    giver: int
    takers: Set[int]


def place(
    costs: Sequence[float], members: Sequence[str], copies: bool, speeds: Sequence[float] | None = None
) -> StagePlacement:
    """At the start, when everybody has everything. `speeds`: of the members, where they are unequal."""
    return _with_copies(deal(costs, members, speeds), dict.fromkeys(members, ()), len(costs), members, copies)


def settle(before: StagePlacement, costs: Sequence[float], members: Sequence[str], copies: bool) -> StagePlacement:
    """For these members, of whom `before` knows some. A stage that nobody holds any more stays without anybody."""
    stages = len(costs)
    computes = {member: before.computes[member] for member in members if member in before.computes}
    keeps = {member: before.keeps.get(member, ()) for member in computes}
    for stage in lost_stages(computes, stages, members):
        keepers = [member for member in computes if stage in keeps[member]]
        if keepers:
            chosen = min(keepers, key=lambda member: (_work(computes[member], costs), members.index(member)))
            computes[chosen] = tuple(sorted((*computes[chosen], stage)))
            keeps[chosen] = _without(keeps[chosen], stage)
    for member in members:
        if member not in computes:
            stage = _slowest(computes, costs)
            computes[member], keeps[member] = (stage,), ()
            for other, own in computes.items():
                if other != member and stage in own and len(own) > 1:
                    computes[other] = _without(own, stage)
                    keeps[other] = tuple(sorted((*keeps[other], stage)))
    return _with_copies(computes, keeps, stages, members, copies)


def moves(before: StagePlacement, after: StagePlacement, members: Sequence[str]) -> list[Move]:
    """What must be passed on so that all have what they hold, in the order of stages."""
    had, has = before.holds, after.holds
    found = []
    for stage in sorted({stage for held in has.values() for stage in held}):
        givers = [rank for rank, member in enumerate(members) if stage in had.get(member, ())]
        takers = {rank for rank, member in enumerate(members) if stage in has[member]} - set(givers)
        if takers and givers:
            found.append(Move(stage, givers[0], takers))
    return found


def _with_copies(
    computes: _Stages, keeps: _Stages, stages: int, members: Sequence[str], copies: bool
) -> StagePlacement:
    """One keeper for each stage that one member computes, if copies are wanted; none for the others."""
    ordered = {member: computes[member] for member in members}
    kept: dict[str, tuple[int, ...]] = dict.fromkeys(members, ())
    for stage in range(stages) if copies and len(members) > 1 else ():
        own = [member for member in members if stage in ordered[member]]
        if len(own) != 1:
            continue
        others = [member for member in members if member != own[0]]
        # Who has the copy keeps it; else the one that holds least, and of equals the next in line.
        first = members.index(own[0])
        chosen = min(
            others,
            key=lambda member: (
                stage not in keeps.get(member, ()),
                len(ordered[member]) + len(kept[member]),
                (members.index(member) - first) % len(members),
            ),
        )
        kept[chosen] = (*kept[chosen], stage)
    return StagePlacement(ordered, kept)


def _slowest(computes: _Stages, costs: Sequence[float]) -> int:
    """The stage whose members have most to do; of equals, the first. Who has two stages is half a hand for each."""
    hands = [0.0] * len(costs)
    for own in computes.values():
        for stage in own:
            hands[stage] += 1.0 / len(own)
    return max(range(len(costs)), key=lambda stage: (costs[stage] / max(hands[stage], 0.25), -stage))


def _work(stages: Sequence[int], costs: Sequence[float]) -> float:
    return sum(costs[stage] for stage in stages)


def _without(stages: Sequence[int], stage: int) -> tuple[int, ...]:
    return tuple(one for one in stages if one != stage)
