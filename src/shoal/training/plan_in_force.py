"""The plan that a fit trains by, where one was made: it may become another one between two steps."""

from __future__ import annotations

import time

import msgspec

from shoal.observe.story import StoryKind
from shoal.planning.candidates import PlanCandidate
from shoal.planning.correction import StepSeen
from shoal.planning.replanning import PlanStanding, Replanning
from shoal.strategies.placement import StagePlacement
from shoal.training.position import Position
from shoal.training.run import Run


class PlanInForce:
    """Tells what changes, and hands it on to who comes late and to checkpoints. All decide alike."""

    def __init__(self, run: Run, replanning: Replanning, epochs: int) -> None:
        self._run = run
        self._replanning = replanning
        self._epochs = epochs
        self.placement: StagePlacement | None = None  # of stages, that the last change wants

    @property
    def candidate(self) -> PlanCandidate:
        return self._replanning.plan

    def start(self) -> None:
        """A fit begins: an earlier one may have changed the plan, and who has come since does not know. Collective."""
        mine = msgspec.msgpack.encode(self._replanning.standing)
        told = self._run.worker_group.gather("fit: the plan in force", mine).chiefs
        self._replanning.take(msgspec.msgpack.decode(told, type=PlanStanding))
        self._expect()

    def give(self, at: Position) -> None:
        at.plan = self._replanning.standing

    def take(self, at: Position) -> None:
        if at.plan is not None:
            self._replanning.take(at.plan)
            self._expect()

    def _expect(self) -> None:
        standing = self._replanning.standing
        self._run.expect(standing.plan.name, standing.seconds)

    def step(self, seen: StepSeen, at: Position, steps: int | None) -> bool:
        """A step has committed. `steps`: of an epoch. Whether the plan is another one from now on."""
        # Where nobody knows how many are left: as many as there were.
        left = at.total if steps is None else max(0, (self._epochs - at.epoch) * steps - at.step)
        found = self._replanning.step(seen, at.trained, left)
        if found is None:
            return False
        self._run.tell(found.text, below_bar=True)
        self._run.happened(StoryKind.PLAN, found.text, at.trained)
        if not found.is_advice:
            self.placement = found.placement
            self._run.expect(found.plan.name, found.seconds)
        return not found.is_advice


class StepClock:
    """Seconds from the end of a step to the end of the next."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.took = 0.0

    def step(self) -> None:
        now = time.perf_counter()
        self.took = now - self._last if self._last is not None else 0.0
        self._last = now
