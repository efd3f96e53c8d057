"""What the shards of a simulated run have gone through, and what must be true of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from shoal.store.decisions.director import Training
from shoal.store.decisions.director_messages import AtRest, Grant
from shoal.store.decisions.placement import Placement
from shoal.store.decisions.replica import ApplyUpdate
from shoal.store.values.messages import Point, Pulled, Pushed
from shoal.store.values.operations import Batch, Tally


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
        self.history.append((update.operation, update.worker))

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
        self._grants: dict[tuple[str, int], Grant] = {}  # worker, turn
        self._over: dict[int, dict[int, set[Batch]]] = {}  # epoch -> by shard: what must be in the weights at its end
        self._written = (0, Tally())
        self._primaries: dict[int, list[tuple[str | None, int]]] = {}  # of each view
        self.stalest = 0
        self.checkpoints: Counter[bool] = Counter()  # whether they succeeded

    def before(self, server: Any, shard: int, apply: ApplyUpdate) -> None:
        """A replica is about to apply an update."""
        toy, batch = server.toys[shard], apply.update.operation
        if any(other == batch for other, _ in toy.history):
            raise Wrong(f"shard {shard} on {server.id} applies {batch} twice")
        if server.replicas[shard].is_primary and apply.gradients.origin == self._origin(shard):
            self._is_fresh(shard, toy, apply)

    def _is_fresh(self, shard: int, toy: Toy, apply: ApplyUpdate) -> None:
        base = apply.gradients.base
        if toy.history[: len(base)] != base:
            raise Wrong(
                f"{apply.update.operation} was computed from weights of shard {shard} that never were its history"
            )
        missed = Counter(worker for _, worker in toy.history[len(base) :] if worker != apply.update.worker)
        staleness = max(missed.values(), default=0)
        self.stalest = max(self.stalest, staleness)
        bound = self._sim.plan.bound
        if staleness != apply.staleness:
            raise Wrong(f"the staleness of {apply.update.operation} is {staleness}, not {apply.staleness}")
        if bound is not None and staleness > bound:
            raise Wrong(f"{apply.update.operation} is {staleness} updates stale on shard {shard}; the bound is {bound}")

    def at_point(self, server: Any, shard: int, point: Point) -> None:
        """A replica has come to this point: it must have the same state as all that came there before."""
        toy = server.toys[shard]
        if not toy.flawed and self._states.setdefault((shard, point), toy.value) != toy.value:
            raise Wrong(f"shard {shard} at {point} is not the same on {server.id} as it was elsewhere")

    def placed(self, placement: Placement) -> None:
        """Everybody is told. A number stands for one view: it is what fences."""
        primaries = [(view.primary, view.origin) for view in placement.views]
        if (before := self._primaries.setdefault(placement.number, primaries)) != primaries:
            raise Wrong(f"view {placement.number} has the primaries {before} and {primaries}")

    def took(self, server: Any, view: Any) -> None:
        """A server has taken a view. The primary of the newest one has all that was ever acknowledged."""
        current = self._sim.placement.number == view.number
        if current and view.primary == server.id:
            applied = {batch for batch, _ in server.toys[view.shard].history}
            if missing := self._acknowledged[view.shard] - applied:
                raise Wrong(f"{server.id} leads shard {view.shard} without {missing}, which were acknowledged")

    def heard(self, worker: Any, answer: Pulled | Pushed) -> None:
        """A worker gets an answer: weights, which count in the view that it is in, or an acknowledgement."""
        view = worker.state.placement.views[answer.shard]
        if answer.view == view.number:
            seen = (view.origin, answer.version)
            if seen < self._saw.get((worker.id, answer.shard), (0, 0)):
                raise Wrong(f"{worker.id} has seen a later version of shard {answer.shard} than {answer.version}")
            self._saw[worker.id, answer.shard] = seen
        lost = answer.view < self._origin(answer.shard)
        if isinstance(answer, Pushed) and not lost and answer.operation not in self.gone[answer.shard]:
            self._acknowledged[answer.shard].add(answer.operation)

    def granted(self, worker: Any, grant: Grant) -> None:
        """A worker is granted an update. One that it has asked for, and one for each time that it has asked."""
        if grant.turn >= worker.state._turn:
            raise Wrong(f"{worker.id} has asked for {worker.state._turn} updates, and is granted turn {grant.turn}")
        if (before := self._grants.setdefault((worker.id, grant.turn), grant)) != grant:
            raise Wrong(f"{worker.id} was granted {before}, and now {grant} too")

    def epoch_is_over(self, epoch: int) -> None:
        """The director says so. If somebody wanted it to end early, what counts is what was acknowledged by now."""
        every = {Batch(epoch, place) for place in range(self._sim.plan.batches)}
        if epoch not in self._over:
            halted = epoch in self._sim.halted
            self._over[epoch] = {
                shard: every & acknowledged if halted else every for shard, acknowledged in self._acknowledged.items()
            }

    def saw_the_end(self, worker: Any, epoch: int, weights: dict[int, tuple[int, Toy]]) -> None:
        """A worker takes these weights for those with every batch of the epoch."""
        for shard, (_, toy) in weights.items():
            applied = {batch for batch, _ in toy.history}
            if missing := self._over[epoch][shard] - applied - self.gone[shard]:
                raise Wrong(f"epoch {epoch} is over for {worker.id}, and shard {shard} lacks {sorted(missing)}")

    def rests(self, worker: Any, rest: AtRest) -> bytes:
        """A worker has been told that all is at rest. What is to be in a checkpoint of it."""
        return msgspec.msgpack.encode((rest.epoch, rest.counted))

    def saw_the_rest(self, worker: Any, rest: AtRest, weights: dict[int, tuple[int, Toy]]) -> None:
        for shard, (_, toy) in weights.items():
            self._is_exact(f"the weights of {worker.id}", shard, toy, rest.epoch, rest.counted)

    def copied(self, server: Any, shard: int, toy: Toy, what: bytes) -> None:
        """A server takes a shard, as it is now, for exactly the batches that are finished."""
        self._is_exact(f"the copy of {server.id}", shard, toy, *msgspec.msgpack.decode(what))

    def gathered(self, gathering: Any) -> None:
        self.checkpoints[not gathering.why] += 1

    def _is_exact(self, whose: str, shard: int, toy: Toy, epoch: int, counted: int) -> None:
        applied = {batch for batch, _ in toy.history}
        before = {batch for batch in self._over.get(epoch - 1, {}).get(shard, set()) if batch.epoch < epoch}
        every = {Batch(epoch, place) for place in range(counted)}
        gone = self.gone[shard]
        if missing := (every | before) - applied - gone:
            raise Wrong(
                f"{counted} batches of epoch {epoch} are finished, and {whose} lacks {missing} of shard {shard}"
            )
        if more := {batch for batch in applied if batch.epoch >= epoch} - every - gone:
            raise Wrong(
                f"{counted} batches of epoch {epoch} are finished, and {whose} has {more} too, of shard {shard}"
            )

    def wrote(self, training: Training | None) -> None:
        """The coordinator has written down what it knows. What counts never ceases to count."""
        if training is not None:
            epoch, counted = self._written
            now = training.book.counted
            kept = counted.below <= now.below and all(place in now for place in counted.beyond)
            if training.book.epoch < epoch or (training.book.epoch == epoch and not kept):
                raise Wrong(f"{counted} counted in epoch {epoch}, and now {now} in epoch {training.book.epoch}")
            self._written = (training.book.epoch, now)

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
        plan, training, processes = self._sim.plan, self._sim.coordinator.training, self._sim.world.processes
        every = [Batch(epoch, place) for epoch in range(plan.epochs) for place in range(plan.batches)]
        needed = {batch for batch in every if batch.epoch not in self._sim.halted}
        if missing := needed - set(self._sim.coordinator.counted):
            raise Wrong(f"{missing} do not count, and the training is over")
        if plan.bound is not None and training.clock.stalest > plan.bound:
            raise Wrong(f"observed {training.clock.observed}, the bound is {plan.bound}")
        for view in training.placement.views:
            holders = [processes[id] for id in (view.primary, *view.backups) if id is not None]
            states = [server.toys[view.shard] for server in holders]
            applied = sorted(batch for batch, _ in states[0].history)
            # What was lost for good may have been computed again, by somebody who did not know that it counts already.
            if applied != [b for b in every if (b in needed and b not in self.gone[view.shard]) or b in applied]:
                raise Wrong(f"shard {view.shard} has applied {applied}, expected every batch once")
            if any(state != states[0] for state in states):
                raise Wrong(f"the replicas of shard {view.shard} differ: {states}")
            if len(states) < min(plan.replicas, len(self._sim.coordinator.servers)):
                raise Wrong(f"shard {view.shard} has {len(states)} replicas that may be promoted: {view}")

    def _origin(self, shard: int) -> int:
        return int(self._sim.placement.views[shard].origin)
