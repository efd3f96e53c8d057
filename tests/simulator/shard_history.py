"""What the shards of a simulated run have gone through, and what must be true of it.

The product's Server, WorkerState and Director run with observers on top, which do nothing but tell `ShardHistory`. A
shard's weights are one number that is never the same after other updates, so it names the updates that are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.checkpoint.resumed import to_bytes
from shoal.cluster.coordinator_service import SayToUser, SendMessage, ServiceLog, Wish
from shoal.session import session
from shoal.store import client, server
from shoal.store.decisions.delivery import Delivery
from shoal.store.decisions.director import Director, Training
from shoal.store.decisions.director_messages import FROM_DIRECTOR, EpochOver, Grant, ShardsPlaced
from shoal.store.decisions.placement import Placement, ShardView, setbacks
from shoal.store.decisions.replica import ApplyUpdate, Decision, Load, Replica, ReportReplica
from shoal.store.decisions.requests import AbstractRequest
from shoal.store.decisions.weights_read import WeightsRead
from shoal.store.decisions.worker_state import WorkerDecision, WorkerRole, WorkerState
from shoal.store.values.ledger import Provenance
from shoal.store.values.messages import Differs, Point, Pulled, Pushed, Supply
from shoal.store.values.operations import Batch, Tally
from shoal.training import position
from shoal.wire.messages import Message

from .machine import current
from .toy_server import ToyTensors
from .wrong import Wrong

if TYPE_CHECKING:
    from .elastic import Simulation

SETTLES = 1.0  # seconds in which every shard gets all its copies, once nobody comes or goes any more
Applied = tuple[tuple[Batch, str], ...]  # batches in their order, and who has computed each


class Computed(NamedTuple):
    """A gradient."""

    base: Applied  # what was in the weights that it was computed from
    view: int  # in which those were pulled


class ShardHistory:
    """What has happened to every shard, and what must be true of it."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        shards = range(sim.plan.shards)
        self._applied: dict[tuple[int, int], Applied] = {(shard, 1 + shard): () for shard in shards}  # shard, weights
        self._computed: dict[tuple[int, int], Computed] = {}  # shard, gradient
        self._pulled: dict[tuple[str, int, int], int] = {}  # by whom, shard, weights -> in which view
        self._states: dict[tuple[int, Point], int] = {}
        self._saw: dict[tuple[str, int], tuple[int, int]] = {}  # worker, shard -> origin, version
        self._acknowledged: dict[int, set[Batch]] = {shard: set() for shard in shards}
        self.gone: dict[int, set[Batch]] = {shard: set() for shard in shards}  # counted, and lost with their shard
        self._again: dict[int, set[Batch]] = {
            shard: set() for shard in shards
        }  # may be in weights that a shard got back
        self._grants: dict[tuple[str, int], Grant] = {}  # worker, turn
        self._begun: set[tuple[str, int]] = set()  # worker, turn
        self._holders: tuple[object, ...] = ()  # who is there, and who holds what; as it was last
        self._settled_at = 0.0  # when that changed last
        self._closed_at = 0.0
        self._copies_due = 0
        self._over: dict[int, dict[int, set[Batch]]] = {}  # epoch -> by shard: what must be in the weights at its end
        self._written = (0, Tally())
        self._primaries: dict[int, list[tuple[str | None, int]]] = {}  # of each view
        self.flawed: set[tuple[int, int]] = set()  # shard, weights in which a bit was flipped, or that came of those
        self.halted: set[int] = set()  # epochs that somebody wanted to end early
        self.differences: list[Differs] = []
        self.said: list[str] = []  # to the user
        self.stalest = 0
        self.busiest: Counter[tuple[str, int]] = Counter()  # worker, epoch -> the most updates that it was at
        self.placement: Placement | None = None  # the newest
        self.training: Training | None = None  # the newest, as the director knows it, or knew when it was closed
        self.servers: dict[str, ObservedServer] = {}
        self.workers: dict[str, ObservedWorkerState] = {}
        self.supplied: Counter[int] = Counter()  # how far the oldest weights that a worker had were behind
        self.saved: Counter[bool] = Counter()  # whether checkpoints succeeded

    def _wrong(self, text: str) -> Wrong:
        """To be raised; but who raises it may be caught by the code that is observed."""
        self._sim.watcher.wrong = self._sim.watcher.wrong or Wrong(text)
        return self._sim.watcher.wrong

    # Servers ------------------------------------------------------------------------------------------

    def applied(self, shard: int, tensors: ToyTensors) -> Applied:
        weights = int(tensors.values[0][0])
        if (shard, weights) not in self._applied:
            raise self._wrong(f"shard {shard} has weights that no updates lead to")
        return self._applied[shard, weights]

    def is_flawed(self, shard: int, tensors: ToyTensors) -> bool:
        return (shard, int(tensors.values[0][0])) in self.flawed

    def flip(self, shard: int, tensors: ToyTensors) -> None:
        before = self.applied(shard, tensors)
        tensors.values[0][0] ^= 1 << 7
        weights = int(tensors.values[0][0])
        self._applied[shard, weights] = before
        self.flawed.add((shard, weights))

    def before(self, server: ObservedServer, replica: Replica, apply: ApplyUpdate) -> Applied:
        """A replica is about to apply an update. What is applied then."""
        shard, batch, gradients = replica.shard, apply.update.operation, apply.gradients
        assert isinstance(batch, Batch)
        assert isinstance(gradients, list)
        before = self.applied(shard, server.tensors(shard))
        twice = any(other == batch for other, _ in before) and batch not in self._again[shard]
        if twice:
            raise self._wrong(f"shard {shard} on {server.me} applies {batch} twice")
        computed = self._computed.get((shard, int(gradients[0][0])))
        if computed is None:
            raise self._wrong(f"shard {shard} on {server.me} applies {batch} with a gradient that nobody has computed")
        if (
            replica.is_primary
            and computed.view >= self._origin(shard)
            and not self._again[shard]  # else the same weights may have been pulled before it went back, and after
            and not self.is_flawed(shard, server.tensors(shard))
        ):
            self._is_fresh(shard, before, computed.base, apply)
        return (*before, (batch, apply.update.worker))

    def _is_fresh(self, shard: int, applied: Applied, base: Applied, apply: ApplyUpdate) -> None:
        if applied[: len(base)] != base:
            raise self._wrong(
                f"{apply.update.operation} was computed from weights of shard {shard} that never were its history"
            )
        missed = Counter(worker for _, worker in applied[len(base) :] if worker != apply.update.worker)
        staleness = max(missed.values(), default=0)
        self.stalest = max(self.stalest, staleness)
        bound = self._sim.plan.bound
        if staleness != apply.staleness:
            raise self._wrong(f"the staleness of {apply.update.operation} is {staleness}, not {apply.staleness}")
        if bound is not None and staleness > bound:
            raise self._wrong(
                f"{apply.update.operation} is {staleness} updates stale on shard {shard}; the bound is {bound}"
            )

    def has_applied(self, server: ObservedServer, shard: int, applied: Applied, flawed: bool) -> None:
        weights = int(server.tensors(shard).values[0][0])
        self._applied[shard, weights] = applied
        if flawed:
            self.flawed.add((shard, weights))

    def at_point(self, server: ObservedServer, shard: int, point: Point) -> None:
        """A replica has come to this point: it must have the same state as all that came there before."""
        tensors = server.tensors(shard)
        weights = int(tensors.values[0][0])
        if not self.is_flawed(shard, tensors) and self._states.setdefault((shard, point), weights) != weights:
            raise self._wrong(f"shard {shard} at {point} is not the same on {server.me} as it was elsewhere")

    def took(self, server: ObservedServer, view: ShardView) -> None:
        """A server has taken a view. The primary of the newest one has all that was ever acknowledged."""
        newest = self.placement is not None and self.placement.number == view.number
        if newest and view.primary == server.me and not server.lacks(view.shard):
            applied = {batch for batch, _ in self.applied(view.shard, server.tensors(view.shard))}
            if missing := self._acknowledged[view.shard] - applied:
                raise self._wrong(f"{server.me} leads shard {view.shard} without {missing}, which were acknowledged")

    def supplies(self, server: ObservedServer, supply: Supply) -> None:
        """A lost shard goes on from a worker's weights: from the newest that there are."""
        placement, sim = self.placement, self._sim
        if placement is None or placement.views[supply.shard].origin == placement.began or self.training is None:
            return
        versions = {
            id: state.newest[supply.shard][0]
            for id, state in self.workers.items()
            if id in self.training.workers and sim.world.processes[id].alive and supply.shard in state.newest
        }
        self.supplied[max(versions.values(), default=0) - min(versions.values(), default=0)] += 1
        newer = {id: version for id, version in versions.items() if version > supply.version and id not in sim.harmed}
        if newer and placement.number == supply.view:
            raise self._wrong(f"shard {supply.shard} goes on from version {supply.version}, and there are {newer}")

    # Workers ------------------------------------------------------------------------------------------

    def computed(self, shard: int, gradient: int, weights: int) -> None:
        """A worker has computed this gradient from these weights."""
        if (shard, weights) not in self._applied:
            raise self._wrong(f"a worker has weights of shard {shard} that no updates lead to")
        view = self._pulled[current().process.name, shard, weights]
        self._computed[shard, gradient] = Computed(self._applied[shard, weights], view)

    def heard(self, state: ObservedWorkerState, answer: Pulled | Pushed, beside: Sequence[Any]) -> None:
        """A worker gets an answer: weights, which count in the view that it is in, or an acknowledgement."""
        assert state.placement is not None
        if isinstance(answer, Pulled):
            self._pulled[state.me, answer.shard, int(beside[0][0])] = answer.view
        view = state.placement.views[answer.shard]
        if answer.view == view.number:
            seen = (view.origin, answer.version)
            if seen < self._saw.get((state.me, answer.shard), (0, 0)):
                raise self._wrong(f"{state.me} has seen a later version of shard {answer.shard} than {answer.version}")
            self._saw[state.me, answer.shard] = seen
        lost = answer.view < self._origin(answer.shard)
        if isinstance(answer, Pushed) and not lost and answer.operation not in self.gone[answer.shard]:
            assert isinstance(answer.operation, Batch)
            self._acknowledged[answer.shard].add(answer.operation)

    def granted(self, state: ObservedWorkerState, grant: Grant) -> None:
        """A worker is granted an update. One that it has asked for, and one for each time that it has asked."""
        if grant.turn >= state._turn:
            raise self._wrong(f"{state.me} has asked for {state._turn} updates, and is granted turn {grant.turn}")
        if (before := self._grants.setdefault((state.me, grant.turn), grant)) != grant:
            raise self._wrong(f"{state.me} was granted {before}, and now {grant} too")

    def begins(self, worker: str, turn: int) -> None:
        """A worker begins what it was granted. A grant that is told again is not computed again."""
        if (worker, turn) in self._begun:
            raise self._wrong(f"{worker} begins what it was granted as turn {turn} once more")
        self._begun.add((worker, turn))

    def is_at(self, worker: str, epoch: int, updates: int) -> None:
        self.busiest[worker, epoch] = max(updates, self.busiest[worker, epoch])

    def saw_the_end(self, worker: str, epoch: int, weights: Sequence[int]) -> None:
        """A worker takes these weights for those with every batch of the epoch."""
        for shard, held in enumerate(weights):
            applied = {batch for batch, _ in self._applied[shard, held]}
            if missing := self._over[epoch][shard] - applied - self.gone[shard]:
                raise self._wrong(f"epoch {epoch} is over for {worker}, and shard {shard} lacks {sorted(missing)}")

    def is_exact(self, whose: str, shard: int, weights: int, epoch: int, counted: int) -> None:
        """These are the weights with exactly the first so many batches of the epoch."""
        if (shard, weights) not in self._applied:
            raise self._wrong(f"{whose} has weights of shard {shard} that no updates lead to")
        applied = {batch for batch, _ in self._applied[shard, weights]}
        before = {batch for batch in self._over.get(epoch - 1, {}).get(shard, set()) if batch.epoch < epoch}
        every = {Batch(epoch, place) for place in range(counted)}
        gone = self.gone[shard]
        if missing := (every | before) - applied - gone:
            raise self._wrong(
                f"{counted} batches of epoch {epoch} are finished, and {whose} lacks {missing} of shard {shard}"
            )
        if more := {batch for batch in applied if batch.epoch >= epoch} - every - gone:
            raise self._wrong(
                f"{counted} batches of epoch {epoch} are finished, and {whose} has {more} too, of shard {shard}"
            )

    def published(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """A checkpoint is in its place: what the chief has written, and what servers have, is of one moment."""
        at, _ = position.decode(to_bytes(header["position"]))
        epoch, step = (
            (at.epoch, at.step) if at.epoch < self._sim.plan.epochs else (at.epoch - 1, self._sim.plan.batches)
        )
        for shard in range(self._sim.plan.shards):
            chiefs, servers = f"trainable/{shard}/weights {shard}", f"{shard}"
            if epoch in self.halted or epoch - 1 in self.halted:
                same = int(arrays[chiefs][0]) == int(arrays[servers][0])
                if not same:
                    raise self._wrong(f"a checkpoint has two states of shard {shard}")
                continue
            self.is_exact("the chief's part", shard, int(arrays[chiefs][0]), epoch, step)
            self.is_exact("the servers' part", shard, int(arrays[servers][0]), epoch, step)
        self.saved[True] += 1

    # The director -------------------------------------------------------------------------------------

    def directed(self, training: Training | None, servers: Collection[str], wishes: Sequence[Wish]) -> None:
        """The director has decided this. `servers`: who could hold something."""
        if training is not None:
            self.training = training
            self._placed_anew(training.placement)
            self._look_who_holds(training.placement, servers)
        for wish in wishes:
            match wish:
                case SayToUser(text):
                    self.said.append(text)
                case SendMessage(_, content):
                    self._told(FROM_DIRECTOR.decode(content))

    def _placed_anew(self, placement: Placement | None) -> None:
        before, self.placement = self.placement, placement or self.placement
        if before is None or placement is None or before.number == placement.number:
            return
        found = setbacks(before.views, placement)
        if found and not self._sim.plan.setbacks:
            raise self._wrong(f"{found}: no shard had lost all its replicas")
        for setback in found:
            # A worker tells which weights it goes on from. What counts already may be in them, or is missing for good;
            # all else that was applied is computed again, and may be in them too.
            shard = setback.shard
            self.gone[shard] |= set(self.counted)
            known = [applied for (of, _), applied in self._applied.items() if of == shard]
            self._again[shard] |= {batch for applied in known for batch, _ in applied}
            self._acknowledged[shard] = set()

    def _look_who_holds(self, placement: Placement | None, servers: Collection[str]) -> None:
        self._closed_at = self._sim.world.time
        holders = (placement.views if placement is not None else None, *servers)
        if holders != self._holders:
            self._holders, self._settled_at = holders, self._closed_at
            self._copies_due = min(self._sim.plan.replicas, len(servers))

    @property
    def counted(self) -> list[Batch]:
        """Every batch that counts by now."""
        if self.training is None:
            return []
        book = self.training.book
        before = [Batch(epoch, place) for epoch in range(book.epoch) for place in range(self._sim.plan.batches)]
        return [*before, *(Batch(book.epoch, place) for place in range(book.dealt) if place in book.counted)]

    def _told(self, message: Message) -> None:
        match message:
            case ShardsPlaced(placement=placement):
                # A number stands for one view: it is what fences.
                self._sim.mark("placed")
                primaries = [(view.primary, view.origin) for view in placement.views]
                if (before := self._primaries.setdefault(placement.number, primaries)) != primaries:
                    raise self._wrong(f"view {placement.number} has the primaries {before} and {primaries}")
            case EpochOver(epoch=epoch) if epoch not in self._over:
                # If somebody wanted it to end early, what counts is what was acknowledged by now.
                every, halted = {Batch(epoch, place) for place in range(self._sim.plan.batches)}, epoch in self.halted
                self._over[epoch] = {
                    shard: every & acknowledged if halted else every
                    for shard, acknowledged in self._acknowledged.items()
                }

    def wrote(self, training: Training | None) -> None:
        """The coordinator has written down what it knows. What counts never ceases to count."""
        if training is not None:
            epoch, counted = self._written
            now = training.book.counted
            kept = counted.below <= now.below and all(place in now for place in counted.beyond)
            if training.book.epoch < epoch or (training.book.epoch == epoch and not kept):
                raise self._wrong(f"{counted} counted in epoch {epoch}, and now {now} in epoch {training.book.epoch}")
            self._written = (training.book.epoch, now)

    # The end ------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """Every batch of every epoch is in every shard once, and all who may be promoted are equal."""
        plan, training = self._sim.plan, self.training
        assert training is not None
        assert training.placement is not None
        every = [Batch(epoch, place) for epoch in range(plan.epochs) for place in range(plan.batches)]
        needed = {batch for batch in every if batch.epoch not in self.halted}
        if missing := needed - set(self.counted):
            raise self._wrong(f"{missing} do not count, and the training is over")
        if plan.bound is not None and training.clock.stalest > plan.bound:
            raise self._wrong(f"observed {training.clock.observed}, the bound is {plan.bound}")
        for view in training.placement.views:
            holders = [self.servers[id] for id in (view.primary, *view.backups) if id in self.servers]
            states = [server.tensors(view.shard) for server in holders]
            applied = sorted(batch for batch, _ in self.applied(view.shard, states[0]))
            # What was lost for good may have been computed again, by somebody who did not know that it counts already.
            due = [b for b in every if (b in needed and b not in self.gone[view.shard]) or b in applied]
            if sorted(set(applied)) != due or (applied != due and not self._again[view.shard]):
                raise self._wrong(f"shard {view.shard} has applied {applied}, expected every batch once")
            has_settled = self._closed_at - self._settled_at > SETTLES
            if has_settled and len(view.backups) + 1 < self._copies_due:
                raise self._wrong(f"shard {view.shard} has too few copies that may be promoted: {view}")
            digests = {state.digest() for state in states}
            if len(digests) > 1:
                raise self._wrong(f"the replicas of shard {view.shard} differ on {[server.me for server in holders]}")

    def applied_at_the_end(self, shard: int) -> Applied:
        """What is in a shard's weights, as its primary has them."""
        assert self.placement is not None
        return self.applied(shard, self.servers[self.placement.views[shard].primary or ""].tensors(shard))

    def _origin(self, shard: int) -> int:
        return self.placement.views[shard].origin if self.placement is not None else 0


# The observers ------------------------------------------------------------------------------------------


def history() -> ShardHistory | None:
    """Of the run whose code is running, if its shards are looked at."""
    return current().process.world.history  # type: ignore[no-any-return]


class ObservedServer(server.Server):
    """The product's own, which tells what its replicas do."""

    def __init__(self, me: str, *more: Any) -> None:
        self.me = me
        self._history = history()
        if self._history is not None:
            self._history.servers[me] = self
        super().__init__(me, *more)

    def tensors(self, shard: int) -> ToyTensors:
        held = self._of(shard)
        assert isinstance(held, ToyTensors)
        return held

    def lacks(self, shard: int) -> bool:
        return shard in self._lacking

    def _take_view(self, view: ShardView) -> None:
        super()._take_view(view)
        if self._history is not None:
            self._history.took(self, view)

    def _supply(self, supply: Supply, arrays: Sequence[Any]) -> None:
        if self._history is not None:
            self._history.supplies(self, supply)
        super()._supply(supply, arrays)

    def _act(self, replica: Replica, decision: Decision) -> None:
        told = self._history
        match decision:
            case ApplyUpdate(point, Provenance(Batch())) if told is not None:
                flawed = told.is_flawed(replica.shard, self.tensors(replica.shard))
                applied = told.before(self, replica, decision)
                super()._act(replica, decision)
                told.has_applied(self, replica.shard, applied, flawed)
                told.at_point(self, replica.shard, point)
            case Load(point) if told is not None:
                super()._act(replica, decision)
                told.at_point(self, replica.shard, point)
            case ReportReplica(Differs() as differs) if told is not None:
                told.differences.append(differs)
                super()._act(replica, decision)
            case _:
                super()._act(replica, decision)


class ObservedWorkerState(WorkerState):
    """The product's own, which tells what it hears."""

    def __init__(self, role: WorkerRole, *more: Any) -> None:
        super().__init__(role, *more)
        self.me = role.me
        self._reads = -1  # the turn of the grant that it reads
        self._history = history()
        if self._history is not None:
            self._history.workers[role.me] = self

    def read(self, message: Message) -> list[WorkerDecision]:
        if self._history is not None and isinstance(message, Grant):
            self._history.granted(self, message)
            self._reads = message.turn
        return super().read(message)

    def _begin(self, batch: Batch, number: int, view: int) -> None:
        if self._history is not None:
            self._history.begins(self.me, self._reads)
        super()._begin(batch, number, view)

    def hear(self, server: str, message: Message, beside: Sequence[Any]) -> list[WorkerDecision]:
        told = self._history if self.placement is not None else None
        asked = isinstance(message, Pulled | Pushed) and any(_expects(one, message) for one in self._requests)
        if told is not None and asked:
            told.heard(self, message, beside)  # type: ignore[arg-type]
        return super().hear(server, message, beside)


def _expects(request: AbstractRequest, message: Pulled | Pushed) -> bool:
    """Whether a request has asked for this."""
    if isinstance(message, Pulled):
        return isinstance(request, WeightsRead) and request._number == message.number
    return isinstance(request, Delivery) and request._operation == message.operation


class ObservedDirector(Director):
    """The product's own, which tells what it decides."""

    def __init__(self, lease: float, written: ServiceLog | None, told: ShardHistory | None) -> None:
        self._history: ShardHistory | None = None
        try:
            super().__init__(lease, written)
        except (RuntimeError, LookupError, ValueError) as error:
            raise Wrong(f"what is written down can't have happened: {error}") from error
        self._history = told

    @property
    def training(self) -> Training | None:
        return self._state.training

    def take(
        self,
        workers: Collection[str],
        servers: Mapping[str, str],
        expected: int,
        now: float,
        hosts: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Wish]:
        return self._tell(super().take(workers, servers, expected, now, hosts))

    def hear(self, sender: str, content: bytes, now: float) -> list[Wish]:
        return self._tell(super().hear(sender, content, now))

    def tick(self, now: float) -> list[Wish]:
        return self._tell(super().tick(now))

    def _tell(self, wishes: list[Wish]) -> list[Wish]:
        if self._history is not None:
            self._history.directed(self._state.training, self._state.servers, wishes)
        return wishes


OBSERVERS = (
    (client, "WorkerState", ObservedWorkerState),
    (session, "Server", ObservedServer),
    (server, "Replica", partial(Replica, check_every=4)),  # few updates are enough to see that replicas differ
)
