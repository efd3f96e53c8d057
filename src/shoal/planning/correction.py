"""What the steps of a training say of the facts that its plan was made from. Pure: notes in, corrected facts out.

    speeds     of each member: what its pieces were expected to take, over what they took
    updates    what an update took over what was expected, of each kind of plan that has been tried
    off        what a step took besides all that, of each kind of plan that has been tried

All of it are medians over the last steps, in the order of ranks, so every member finds the same from the same notes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import fsum
from statistics import median
from typing import NamedTuple

import msgspec

from shoal.data.order import piece_bounds
from shoal.planning.candidates import Kind, PlanCandidate, cut_of
from shoal.planning.facts import PlanFacts, StageFacts, at_rows
from shoal.planning.replay import filling
from shoal.strategies.placement import StagePlacement

WINDOW = 31  # steps
_ALIKE = 1.1  # members whose speeds differ by less than this factor are equally fast
_SPEEDS = (1e-3, 1e3)  # what a speed may be; anything else is a clock's mistake
_FACTORS = (0.1, 10.0)  # the same, of an update

Work = tuple[tuple[int, range], ...]  # stages and the pieces that are computed in each; the whole model is stage 0


class StepSeen(NamedTuple):
    """A committed step, the same on all members. By rank."""

    members: tuple[str, ...]
    size: int  # rows of its batch
    pieces: int
    work: tuple[Work, ...]
    seconds: tuple[float, ...]  # that the work took
    updates: tuple[float, ...]  # that each one's update took, in the step before
    took: tuple[float, ...]  # from the end of a step to the end of the next one, as each has it
    placement: StagePlacement | None = None  # of stages, in a pipeline; the members in the order of ranks


class Off(msgspec.Struct, frozen=True, array_like=True):
    """How far steps of a kind of plan are from what was predicted: longer by some seconds, or shorter by a factor."""

    more: float = 0.0
    factor: float = 1.0

    @classmethod
    def of(cls, actual: float, predicted: float) -> Off:
        return cls(more=actual - predicted) if actual >= predicted else cls(factor=actual / predicted)

    def __call__(self, predicted: float) -> float:
        return predicted * self.factor + self.more


class RecentSteps:
    """The last steps of the same members with the same plan."""

    def __init__(self, facts: PlanFacts) -> None:
        self._facts = facts
        self.members: tuple[str, ...] = ()
        self.forget()

    def forget(self) -> None:
        """The plan is another one, or the members are."""
        self.count = 0
        self._took: deque[float] = deque(maxlen=WINDOW)
        self._speeds: list[deque[float]] = [deque(maxlen=WINDOW) for _ in self.members]
        self._updates: list[deque[float]] = [deque(maxlen=WINDOW) for _ in self.members]

    def add(self, seen: StepSeen, plan: PlanCandidate) -> None:
        if seen.members != self.members:
            self.members = seen.members
            self.forget()
        if seen.size != self._facts.batch:
            return  # such as the last one of an epoch: nothing was measured for it
        self.count += 1
        if self.count == 1:
            return  # programs are compiled, and what it says of the step before is of another plan
        self._took.append(median(seen.took))
        for rank, (work, seconds, update) in enumerate(zip(seen.work, seen.seconds, seen.updates, strict=True)):
            alone = self._alone(work, seen.pieces, plan)
            taken = seconds - _filled(self._facts, plan, work, len(seen.members))
            if alone and seconds > 0.0:
                self._speeds[rank].append(min(max(alone / max(taken, seconds / 2), _SPEEDS[0]), _SPEEDS[1]))
            self._updates[rank].append(update)

    @property
    def took(self) -> float:
        """Seconds of a step."""
        return median(self._took)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Of each rank; 1.0 is what was measured. Who has computed nothing is as fast as the others on average."""
        known = [median(one) if one else None for one in self._speeds]
        usual = median([one for one in known if one is not None] or [1.0])
        speeds = [usual if one is None else one for one in known]
        if max(speeds) < _ALIKE * min(speeds):
            speeds = [fsum(speeds) / len(speeds)] * len(speeds)
        return tuple(speeds)

    def update_factor(self, plan: PlanCandidate) -> float:
        """What an update took over what was expected of it, on workers of these speeds."""
        whole, speeds = self._facts.whole, self.speeds
        if plan.kind is Kind.PIPELINE or whole is None:
            return 1.0
        if plan.kind is Kind.SLICED:  # slices follow the speeds: all take equally long
            expected = [whole.sliced / fsum(speeds)] * len(speeds)
        else:
            expected = [whole.update / speed for speed in speeds]
        taken = [median(one) / many for one, many in zip(self._updates, expected, strict=True) if one and many]
        return min(max(median(taken), _FACTORS[0]), _FACTORS[1]) if taken else 1.0

    def _alone(self, work: Work, pieces: int, plan: PlanCandidate) -> float:
        """Seconds that it takes a worker of speed 1."""
        bounds = piece_bounds(self._facts.batch, pieces)
        stages = stages_of(self._facts, plan)
        return fsum(
            fsum(at_rows(stages[stage].times, bounds[piece + 1] - bounds[piece])[:2])
            for stage, run in work
            for piece in run
        )


def stages_of(facts: PlanFacts, plan: PlanCandidate) -> Sequence[StageFacts]:
    if plan.kind is Kind.PIPELINE:
        return cut_of(facts, plan).stages
    assert facts.whole is not None, "only what was measured is a plan"
    return (facts.whole,)


def corrected(facts: PlanFacts, speeds: Sequence[float], factors: Mapping[Kind, float]) -> PlanFacts:
    """With the members' speeds, and with what updates took."""
    whole = facts.whole
    if whole is not None:
        plain, sliced = factors.get(Kind.DATA, 1.0), factors.get(Kind.SLICED, 1.0)
        whole = msgspec.structs.replace(whole, update=whole.update * plain, sliced=whole.sliced * sliced)
    return msgspec.structs.replace(facts, speeds=tuple(speeds), whole=whole)


def _filled(facts: PlanFacts, plan: PlanCandidate, work: Work, members: int) -> float:
    """Seconds of a step's work that are no computing: gradients on their way into partial sums."""
    if plan.kind is Kind.PIPELINE:
        return 0.0  # passes alone are timed there
    stages = stages_of(facts, plan)
    return fsum(filling(facts.link, stages[stage].gradients, len(run), members) for stage, run in work if run)
