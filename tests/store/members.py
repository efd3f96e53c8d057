"""Servers and workers of a simulated run: the shortest shells around the product's replicas and worker states."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.cluster.coordinator_link import _REPEATED
from shoal.cluster.messages import Ready, ServiceMessage
from shoal.store.decisions import replica as replicas
from shoal.store.decisions.delivery import Delivery
from shoal.store.decisions.director_messages import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    Close,
    EpochOver,
    Grant,
    Halt,
    Next,
    Open,
    Serve,
    ShardsPlaced,
    TrainingClosed,
)
from shoal.store.decisions.placement import Placement
from shoal.store.decisions.replica import (
    ApplyUpdate,
    Digest,
    Drop,
    Give,
    GoBack,
    Load,
    Replica,
    ReportReplica,
    TellMember,
)
from shoal.store.decisions.requests import AbstractRequest, Ask
from shoal.store.decisions.saves import Copied, Gathering, NotSaved, Save, SaveQueue, ShardSaved
from shoal.store.decisions.weights_read import WeightsRead
from shoal.store.decisions.worker_state import (
    BatchWork,
    ComeBack,
    EpochEnd,
    Offer,
    Rest,
    TellDirector,
    WorkerDecision,
    WorkerRole,
    WorkerState,
)
from shoal.store.values.messages import Differs, Pulled, Pushed, ShardMessage
from shoal.wire.messages import Message

from .history import Gradient, Toy, Wrong
from .world import COORDINATOR, Process

if TYPE_CHECKING:
    from .simulation import Simulation

CALL = 0  # of the script: there is one training in a run
WRITES = 0.02  # seconds, at most, that a server takes to write what it has copied


class Join(NamedTuple):
    """A process is there, or there again."""


class Link:
    """A member's connection to the coordinator, as cluster/coordinator_link.py has it."""

    def __init__(self, sim: Simulation, id: str) -> None:
        self._sim = sim
        self._id = id
        self._said: deque[Message] = deque(maxlen=_REPEATED)
        self.is_taken = False  # the coordinator of now knows who is at the other end

    def join(self) -> None:
        """Join, or join another coordinator, and repeat what the one before may not have heard."""
        self.is_taken = True
        for message in (Join(), *self._said):
            self._sim.world.send(self._id, COORDINATOR, message)

    def ready(self) -> None:
        self._say(Ready(CALL))

    def write(self, message: Message) -> None:
        self._sim.mark(type(message).__name__)
        self._say(ServiceMessage(TO_DIRECTOR.encode(message)))

    def _say(self, message: Message) -> None:
        if message not in self._said:
            self._said.append(message)
        if self.is_taken:
            self._sim.world.send(self._id, COORDINATOR, message)


@dataclass
class Member(Process):
    """A server or a worker."""

    sim: Simulation = field(kw_only=True)

    def __post_init__(self) -> None:
        self.coordinator_link = Link(self.sim, self.id)

    def hear(self, sender: str, *said: Any) -> None:
        match said:
            case (ServiceMessage(content),):
                self.read(FROM_DIRECTOR.decode(content))
            case (ShardMessage() as message, beside):
                self.hear_of_shard(sender, message, beside)
            case (Save() | Copied() | ShardSaved() | NotSaved() as message,):
                self.hear_of_save(sender, message)

    def begin(self, late: bool) -> None:
        """Its script has come to the training."""
        raise NotImplementedError

    def read(self, message: Message) -> None:
        raise NotImplementedError

    def hear_of_shard(self, sender: str, message: ShardMessage, beside: Any) -> None:
        raise NotImplementedError

    def hear_of_save(self, sender: str, message: Any) -> None:
        raise NotImplementedError


# Servers ----------------------------------------------------------------------------------------------


class Writer:
    """Writes nothing: lets the watcher look at what it has copied, and takes its time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._told: bytes | None = None

    def copy(self, shards: Mapping[int, Any], place: int, what: bytes) -> str:
        world = self._server.sim.world
        for shard, toy in shards.items():
            self._server.sim.watcher.copied(self._server, shard, toy, what)
        self._told = None
        world.after(world.random.uniform(0.0, WRITES), partial(world.awake, self._server.id, self._written))
        return ""

    def poll(self) -> bytes | str | None:
        told, self._told = self._told, None
        return told

    def _written(self) -> None:
        self._told = b"written"
        self._server.save_queue.look(())


@dataclass
class Server(Member):
    """One server: its replicas and their shells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shards = range(self.sim.plan.shards)
        self.replicas = {shard: Replica(shard, self.id, check_every=4) for shard in shards}
        self.toys = {shard: Toy() for shard in shards}
        self.is_closed = False
        held: Any = self.replicas
        self.save_queue = SaveQueue(held, lambda shard: self.toys[shard], Writer(self), self._answer)  # type: ignore[arg-type,return-value]

    def begin(self, late: bool) -> None:
        self.coordinator_link.write(Serve(CALL))

    def read(self, message: Message) -> None:
        match message:
            case ShardsPlaced(placement=placement):
                self._take(placement)
            case TrainingClosed():
                self.is_closed = True

    def hear_of_save(self, sender: str, message: Any) -> None:
        self.save_queue.hear(sender, message)
        self.save_queue.look(())

    def _answer(self, to: str, message: Message) -> None:
        self.sim.mark(type(message).__name__)
        self.sim.world.send(self.id, to, message)

    def hear_of_shard(self, sender: str, message: ShardMessage, beside: Any) -> None:
        self.decided(message.shard, self.replicas[message.shard].handle(sender, message, beside))

    def reconnected(self, peer: str) -> None:
        for shard, replica in self.replicas.items():
            self.decided(shard, replica.reconnected(peer))

    def _take(self, placement: Placement) -> None:
        if self.sim.skips(placement.number):
            return
        for view in placement.views:
            self.decided(view.shard, self.replicas[view.shard].take_view(view))
            self.sim.watcher.took(self, view)
        self.save_queue.look(())

    def decided(self, shard: int, decisions: Sequence[replicas.Decision]) -> None:
        self.perform(shard, decisions)
        if self.replicas[shard].is_primary:
            self.sim.save(shard, self.replicas[shard], self.toys[shard])

    def perform(self, shard: int, decisions: Sequence[replicas.Decision]) -> None:
        for decision in decisions:
            self._act(shard, decision)

    def _act(self, shard: int, decision: replicas.Decision) -> None:
        sim, replica, toy = self.sim, self.replicas[shard], self.toys[shard]
        match decision:
            case TellMember(to, message, beside):
                self._send(to, message, beside)
            case Give(to, message):
                self._send(to, message, toy.copy())
            case ReportReplica(message):
                if isinstance(message, Differs):
                    sim.differences.append(message)
                self.coordinator_link.write(message)
            case ApplyUpdate(point, update, _, gradient):
                sim.watcher.before(self, shard, decision)
                toy.apply(update, gradient.value)
                sim.watcher.at_point(self, shard, point)
            case Load(point, state):
                self.toys[shard] = state.copy()
                sim.watcher.at_point(self, shard, point)
            case Digest(point):
                self.perform(shard, replica.digested(point, toy.value))
            case GoBack():
                version, ledger, state = sim.checkpoints[shard]
                self.toys[shard] = state.copy()
                sim.watcher.went_back(shard, state)
                self.perform(shard, replica.restored(version, ledger))
            case Drop():
                self.toys[shard] = Toy()

    def _send(self, to: str, message: ShardMessage, beside: object) -> None:
        self.sim.mark(type(message).__name__)
        self.sim.world.send(self.id, to, message, beside)


# Workers ----------------------------------------------------------------------------------------------


@dataclass
class Worker(Member):
    """One worker: the product's WorkerState, and a shell that computes nothing."""

    slowness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state = WorkerState(WorkerRole(self.id, CALL, self.sim.plan.shards, self.sim.plan.ahead))
        self.waits_at = -1  # the last epoch at whose end it has come to the meeting
        self.is_at = -1  # the epoch of which it has a batch
        self.gathering: Gathering | None = None

    def begin(self, late: bool) -> None:
        plan = self.sim.plan
        sizes = tuple(10 + shard for shard in range(plan.shards))
        if late:
            self.coordinator_link.ready()
        else:
            self.coordinator_link.write(Open(CALL, sizes, 0, plan.batches, plan.bound, plan.replicas, plan.ahead))

    def go_on(self, epoch: int) -> None:
        """All workers have met at the end of the epoch before this one."""
        if epoch < self.sim.plan.epochs:
            self.coordinator_link.write(Next(CALL, epoch, self.sim.plan.batches))

    def halt(self) -> None:
        self.coordinator_link.write(Halt(CALL, self.is_at))

    def finish(self) -> None:
        self.coordinator_link.write(Close(CALL))

    # Checkpoints

    def pause(self) -> None:
        self._perform(self.state.pause())

    def hear_of_save(self, sender: str, message: Any) -> None:
        self._perform(self.state.hear(sender, message, ()))

    def _look_at_gathering(self) -> None:
        gathering = self.gathering
        if gathering is not None and self.state.is_pausing and (gathering.is_copied or gathering.is_over):
            self._perform(self.state.end_pause())
        if self.gathering is not None and self.gathering.is_over:
            over, self.gathering = self.gathering, None
            self.state.drop(over)
            self.sim.watcher.gathered(over)

    # What it is told

    def read(self, message: Message) -> None:
        match message:
            case Grant():
                self.sim.watcher.granted(self, message)
            case EpochOver(epoch=epoch) if self.state.placement is None:
                raise Wrong(f"{self.id} hears of the end of epoch {epoch}, and not where the shards are")
        self._perform(self.state.read(message))

    def hear_of_shard(self, sender: str, message: ShardMessage, beside: Any) -> None:
        if self.state.placement is None:
            return
        if isinstance(message, Pulled | Pushed) and any(expects(request, message) for request in self.state._requests):
            self.sim.watcher.heard(self, message)
        origin = self.state.placement.views[message.shard].origin
        self._perform(self.state.hear(sender, message, (origin, beside)))

    def reconnected(self, peer: str) -> None:
        self._perform(self.state.reconnected(peer))

    # What it decides

    def _perform(self, decisions: Sequence[WorkerDecision]) -> None:
        for decision in decisions:
            self._act(decision)
        self._look_at_gathering()

    def _act(self, decision: WorkerDecision) -> None:
        match decision:
            case Ask(server, message, beside):
                name = type(message).__name__
                self.sim.mark(name)
                if isinstance(message, ShardMessage):
                    self.sim.mark(f"{name} of {self.id}")
                    self.sim.world.send(self.id, server, message, beside[0] if beside else None)
                else:
                    self.sim.world.send(self.id, server, message)
            case TellDirector(message):
                self.coordinator_link.write(message)
            case ComeBack():
                self.coordinator_link.ready()
            case Offer(BatchWork() as work):
                self._compute(work)
            case Offer(EpochEnd(epoch, weights)):
                self.sim.watcher.saw_the_end(self, epoch, dict(enumerate(weights)))
                self.waits_at = epoch
                self.sim.meet()
            case Offer(Rest() as rest):
                self.sim.watcher.saw_the_rest(self, rest, dict(enumerate(rest.weights)))
                self.gathering = Gathering(self.sim.watcher.rests(self, rest), 1, self.state.numbers)
                self._perform(self.state.begin(self.gathering))

    def _compute(self, work: BatchWork) -> None:
        self.is_at = work.batch.epoch
        at, busiest = len(self.state._updates), self.sim.busiest
        busiest[self.id, work.batch.epoch] = max(at, busiest[self.id, work.batch.epoch])
        seconds = self.sim.world.random.uniform(0.003, 0.01) * self.slowness
        self.sim.world.after(seconds, partial(self.sim.world.awake, self.id, partial(self._computed, work)))

    def _computed(self, work: BatchWork) -> None:
        if self.state.is_granted(work):
            gradients = {}
            for shard, (origin, toy) in enumerate(work.weights):
                value = hash((toy.value, shard, work.batch.epoch, work.batch.place))
                gradients[shard] = (Gradient(value, toy.history, origin),)
            self._perform(self.state.computed(work, gradients, None))


def expects(request: AbstractRequest, message: Pulled | Pushed) -> bool:
    """Whether a request has asked for this."""
    if isinstance(message, Pulled):
        return isinstance(request, WeightsRead) and request._number == message.number
    return isinstance(request, Delivery) and request._operation == message.operation
