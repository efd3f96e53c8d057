"""What the shards of a simulated run have gone through, and what must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.store.batches import Batch
from shoal.store.messages import Point, Pulled, Pushed
from shoal.store.replica import Apply


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass
class Toy:
    """A shard's tensors: a number, and what it was made of."""

    value: int = 1
    history: list[tuple[Batch, str]] = field(default_factory=list)
    flawed: bool = False

    def apply(self, update: Any, gradient: int) -> None:
        self.value = (self.value * 6364136223846793005 + gradient) % 2**64
        self.history.append((update.batch, update.worker))

    def copy(self) -> Toy:
        return Toy(self.value, list(self.history), self.flawed)


class Gradient(NamedTuple):
    value: int
    base: list[tuple[Batch, str]]  # what was in the weights
    origin: int


class Watcher:
    """The history, and what must be true of it."""

    def __init__(self, sim: Any) -> None:
        self._sim = sim
        self._states: dict[tuple[int, Point], int] = {}
        self._saw: dict[tuple[str, int], tuple[int, int]] = {}  # worker, shard -> origin, version
        self._acknowledged: dict[int, set[Batch]] = {shard: set() for shard in range(sim.plan.shards)}
        self.gone: dict[int, set[Batch]] = {shard: set() for shard in range(sim.plan.shards)}
        self.stalest = 0

    def before(self, server: Any, shard: int, apply: Apply) -> None:
        """A replica is about to apply an update."""
        toy, batch = server.toys[shard], apply.update.batch
        if any(other == batch for other, _ in toy.history):
            raise Wrong(f"shard {shard} on {server.id} applies {batch} twice")
        if server.replicas[shard].is_primary and apply.gradients.origin == self._origin(shard):
            self._is_fresh(shard, toy, apply)

    def _is_fresh(self, shard: int, toy: Toy, apply: Apply) -> None:
        base = apply.gradients.base
        if toy.history[: len(base)] != base:
            raise Wrong(f"{apply.update.batch} was computed from weights of shard {shard} that never were its history")
        missed = Counter(worker for _, worker in toy.history[len(base) :] if worker != apply.update.worker)
        staleness = max(missed.values(), default=0)
        self.stalest = max(self.stalest, staleness)
        bound = self._sim.plan.bound
        if staleness != apply.staleness:
            raise Wrong(f"the staleness of {apply.update.batch} is {staleness}, not {apply.staleness}")
        if bound is not None and staleness > bound:
            raise Wrong(f"{apply.update.batch} is {staleness} updates stale on shard {shard}; the bound is {bound}")

    def at_point(self, server: Any, shard: int, point: Point) -> None:
        """A replica has come to this point: it must have the same state as all that came there before."""
        toy = server.toys[shard]
        if not toy.flawed and self._states.setdefault((shard, point), toy.value) != toy.value:
            raise Wrong(f"shard {shard} at {point} is not the same on {server.id} as it was elsewhere")

    def took(self, server: Any, view: Any) -> None:
        """A server has taken a view. The primary of the newest one has all that was ever acknowledged."""
        current = self._sim.coordinator.placement.number == view.number
        if current and view.primary == server.id:
            applied = {batch for batch, _ in server.toys[view.shard].history}
            if missing := self._acknowledged[view.shard] - applied:
                raise Wrong(f"{server.id} leads shard {view.shard} without {missing}, which were acknowledged")

    def heard(self, worker: Any, answer: Pulled | Pushed) -> None:
        """A worker gets an answer: weights, which count in the view that it is in, or an acknowledgement."""
        view = worker.placement.views[answer.shard]
        if answer.view == view.number:
            seen = (view.origin, answer.version)
            if seen < self._saw.get((worker.id, answer.shard), (0, 0)):
                raise Wrong(f"{worker.id} has seen a later version of shard {answer.shard} than {answer.version}")
            self._saw[worker.id, answer.shard] = seen
        lost = answer.view < self._origin(answer.shard) or answer.batch in self.gone[answer.shard]
        if isinstance(answer, Pushed) and not lost:
            self._acknowledged[answer.shard].add(answer.batch)

    def went_back(self, shard: int, state: Toy) -> None:
        self._acknowledged[shard] &= {batch for batch, _ in state.history}

    def lost_for_good(self, setbacks: Sequence[Any], counted: Sequence[Batch]) -> None:
        """What counts already and is not in the checkpoint will be missing; nothing else may be."""
        if setbacks and not self._sim.plan.setbacks:
            raise Wrong(f"{setbacks}: no shard had lost all its replicas")
        for setback in setbacks:
            kept = {batch for batch, _ in self._sim.checkpoints[setback.shard][2].history}
            self._acknowledged[setback.shard] &= kept
            self.gone[setback.shard] = set(counted) - kept

    def at_the_end(self) -> None:
        """All is quiet: every batch of every epoch is in every shard once, and its replicas are equal."""
        plan, coordinator, processes = self._sim.plan, self._sim.coordinator, self._sim.world.processes
        every = [Batch(epoch, place) for epoch in range(plan.epochs) for place in range(plan.batches)]
        if sorted(coordinator.counted) != every:
            raise Wrong(f"counted {sorted(coordinator.counted)}, expected every batch once")
        if plan.bound is not None and coordinator.clock.stalest > plan.bound:
            raise Wrong(f"observed {coordinator.clock.observed}, the bound is {plan.bound}")
        for view in coordinator.placement.views:
            holders = [processes[id] for id in (view.primary, *view.backups) if id is not None]
            states = [server.toys[view.shard] for server in holders]
            applied = sorted(batch for batch, _ in states[0].history)
            # What was lost for good may have been computed again, by somebody who did not know that it counts already.
            if applied != [batch for batch in every if batch not in self.gone[view.shard] or batch in applied]:
                raise Wrong(f"shard {view.shard} has applied {applied}, expected every batch once")
            if any(state != states[0] for state in states):
                raise Wrong(f"the replicas of shard {view.shard} differ: {states}")
            if len(states) < min(plan.replicas, len(coordinator.placement.servers)):
                raise Wrong(f"shard {view.shard} has {len(states)} replicas that may be promoted: {view}")

    def _origin(self, shard: int) -> int:
        return self._sim.coordinator.placement.views[shard].origin
