"""Whether another plan is better from here on. Pure: committed steps in, a change out, the same on all members.

After every step `step` is told what all have noted. Once enough steps of the same members with the same plan are seen,
and whenever speeds have changed since, the facts are corrected by what the steps took (correction.py), and every
candidate is predicted anew. Another one is taken when its step is expected to be shorter by more than 5 %, and what
that saves in the steps that are left is more than the change costs.

What a kind of plan really took is remembered for as long as the members stay: a plan that has turned out slower than
predicted is compared by what it took. So plans are not changed to and fro, each kind is tried at most once. With every
change it takes twice as many steps until the next look.

A change that a fit can't make between two steps (into stages, or out of them) is told as advice, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

import msgspec

from shoal.observe.amounts import duration
from shoal.planning.candidates import Kind, PlanCandidate, candidates, cut_of
from shoal.planning.correction import Off, RecentSteps, StepSeen, corrected, stages_of
from shoal.planning.facts import PlanFacts
from shoal.planning.replay import Prediction, placed, predict
from shoal.strategies.placement import StagePlacement

MARGIN = 1.05  # times as long as with another plan: only then is it worth a change
PAYS = 2.0  # times its price that a change must save: what it costs is only estimated
LOOK_EVERY = 30  # steps, at first
_MOST_DOUBLED = 20
CHANGED = 1.1  # a speed, or the time of a step, that is off by this factor since the last look means another look


class PlanStanding(msgspec.Struct, frozen=True):
    """How far planning is, for who comes late and for a checkpoint."""

    plan: PlanCandidate
    seconds: float  # that a step is expected to take
    off: dict[Kind, Off] = {}
    factors: dict[Kind, float] = {}
    members: tuple[str, ...] = ()  # of which `off`, `factors` and `changes` are
    changes: int = 0  # of the plan
    advised: tuple[str, ...] = ()


class Replan(NamedTuple):
    """What is to be done before the next step, and what there is to tell."""

    plan: PlanCandidate
    seconds: float
    text: str
    is_advice: bool  # nothing is done
    placement: StagePlacement | None = None  # of a pipeline's stages: they move


class Replanning:
    """Of one fit. `standing` is what all members have alike."""

    def __init__(self, facts: PlanFacts, plan: PlanCandidate, seconds: float, pieces: int | None = None) -> None:
        """`pieces`: as the user has said; they stay."""
        self._facts = facts
        self._pieces = pieces
        self._recent = RecentSteps(facts)
        self._looked: tuple[float, ...] = ()  # the speeds, and the time of a step, at the last look
        self.standing = PlanStanding(plan, seconds)

    @property
    def plan(self) -> PlanCandidate:
        return self.standing.plan

    def take(self, standing: PlanStanding) -> None:
        """What another has told, or a checkpoint. What it has seen of steps is not told: with another member all begin
        anew to count them.
        """
        self.standing = standing
        self._recent.members = ()
        self._recent.forget()

    def step(self, seen: StepSeen, total: int, left: int) -> Replan | None:
        """`left`: steps until the end of the fit, `total`: steps of the run so far; for the text."""
        had = self._recent.members
        self._recent.add(seen, self.plan)
        if seen.members != self.standing.members:  # what was learnt of other members' steps does not count
            self.standing = msgspec.structs.replace(self.standing, members=seen.members, off={}, factors={}, changes=0)
            self._looked = ()
        # After each change it takes twice as many steps until the next: noise can't change plans to and fro for long.
        every = LOOK_EVERY << min(self.standing.changes, _MOST_DOUBLED)
        if not self._recent.count or self._recent.count % every:
            return None
        now = (self._recent.took, *self._recent.speeds)
        if self._looked and all(_alike(one, other) for one, other in zip(now, self._looked, strict=True)):
            return None
        cause = self._cause(had, now)
        self._looked = now
        return self._look(cause, total, left, seen.placement)

    def _look(self, cause: str, total: int, left: int, placement: StagePlacement | None) -> Replan | None:
        standing, took = self.standing, self._recent.took
        factors = {**standing.factors, standing.plan.kind: self._recent.update_factor(standing.plan)}
        facts = corrected(self._facts, self._recent.speeds, factors)
        here = predict(facts, standing.plan, placement)
        off = {**standing.off, standing.plan.kind: Off.of(took, here.seconds)}
        self.standing = msgspec.structs.replace(standing, off=off, factors=factors)
        found: list[tuple[float, PlanCandidate]] = []
        for one in candidates(facts, self._pieces):
            expected = predict(facts, one, self._placement(facts, one, placement))
            seconds = off.get(one.kind, off[standing.plan.kind])(expected.seconds)
            same = one == standing.plan and not _moves(facts, one, placement)
            if not same and took > MARGIN * seconds and _fits(facts, expected, here):
                found.append((seconds, one))
        found.sort(key=lambda pair: (pair[0], pair[1].kind.simplicity, pair[1].pieces))
        for seconds, one in found:
            if not _is_possible(standing.plan, one):
                continue
            moving = _moves(facts, one, placement)
            if (took - seconds) * left > PAYS * _price(facts, standing.plan, one, moving):
                return self._change(one, seconds, cause, total, placement if moving else None)
        return self._advice(found, took)

    def _placement(self, facts: PlanFacts, plan: PlanCandidate, before: StagePlacement | None) -> StagePlacement | None:
        """Of its stages, as a change would have it; None: as it would begin."""
        if before is None or not _is_possible(self.plan, plan):
            return None
        return placed(facts, cut_of(facts, plan), self._recent.members) if _moves(facts, plan, before) else before

    def _change(
        self, plan: PlanCandidate, seconds: float, cause: str, total: int, before: StagePlacement | None
    ) -> Replan:
        facts = corrected(self._facts, self._recent.speeds, {})
        placement = placed(facts, cut_of(facts, plan), self._recent.members) if before is not None else None
        instead = f"instead of {self.plan.name}" if plan != self.plan else "with stages at other workers"
        text = (
            f"plan: {plan.name} {instead} from step {total} on, since {cause}: "
            f"{duration(seconds)} per step are expected, {duration(self._recent.took)} were taken"
        )
        self.standing = msgspec.structs.replace(
            self.standing, plan=plan, seconds=seconds, changes=self.standing.changes + 1
        )
        self._recent.forget()
        self._looked = ()
        return Replan(plan, seconds, text, is_advice=False, placement=placement)

    def _advice(self, found: list[tuple[float, PlanCandidate]], took: float) -> Replan | None:
        for seconds, one in found:
            name = f"{one.kind} {one.stages}"
            if _is_possible(self.plan, one):
                continue  # it would not pay any more
            if name in self.standing.advised:
                return None
            self.standing = msgspec.structs.replace(self.standing, advised=(*self.standing.advised, name))
            text = (
                f"plan: {one.name} would be faster ({duration(seconds)} per step instead of {duration(took)}), but a "
                f"fit that has begun can't change to it. For the next one: shoal run -n {len(self._recent.members)} "
                f"{one.flags}"
            )
            return Replan(one, seconds, text, is_advice=True)
        return None

    def _cause(self, had: tuple[str, ...], now: tuple[float, ...]) -> str:
        speeds = [f"{speed:.2f}" for speed in now[1:]]
        if len(had) != self._facts.workers:
            return f"there are {len(had)} worker{'s' if len(had) > 1 else ''} now"
        if max(now[1:]) > CHANGED * min(now[1:]):
            return f"the workers' speeds are {', '.join(speeds)} times what was measured"
        return f"steps take {now[0] / self.standing.seconds:.2f} times what was predicted"


def _is_possible(plan: PlanCandidate, other: PlanCandidate) -> bool:
    """Whether a fit can go on from one with the other, between two steps."""
    alike = {Kind.DATA, Kind.SLICED}
    if plan.kind in alike:
        return other.kind in alike
    same = (plan.kind, plan.stages, plan.speeds, plan.mesh)
    return same == (other.kind, other.stages, other.speeds, other.mesh)


def _moves(facts: PlanFacts, plan: PlanCandidate, placement: StagePlacement | None) -> list[int]:
    """The stages that workers of these speeds would get, and do not have: one entry for each worker that gets one."""
    if placement is None or plan.kind is not Kind.PIPELINE:
        return []
    members = tuple(placement.computes)
    cut = cut_of(facts, plan)
    if len(cut.stages) > len(members):
        return []  # one who came would change it again
    wanted = placed(facts, cut, members)
    if wanted.computes == placement.computes:
        return []
    return [stage for member in members for stage in wanted.of(member) if stage not in placement.of(member)] or [0]


def _price(facts: PlanFacts, plan: PlanCandidate, other: PlanCandidate, moving: Sequence[int]) -> float:
    """Seconds that a change takes: what moves, and programs that are compiled anew."""
    price, stages = 0.0, stages_of(facts, other)
    compiling = facts.whole.compiling if facts.whole is not None else 0.0
    if other.pieces != plan.pieces:
        price += compiling
    if other.kind is not plan.kind:
        state = stages[0].optimizer + 2 * stages[0].weights
        price += compiling + state / facts.link.copying
    speed = facts.link.bandwidth or facts.link.copying
    return price + fsum(compiling + (stages[one].weights + stages[one].optimizer) / speed for one in moving)


def _fits(facts: PlanFacts, expected: Prediction, here: Prediction) -> bool:
    """Whether there is memory for it; as much as is needed now there is."""
    return facts.limit is None or max(expected.memory) <= max(facts.limit, max(here.memory))


def _alike(one: float, other: float) -> bool:
    return one < CHANGED * other and other < CHANGED * one
