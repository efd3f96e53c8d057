"""Servers and workers of a simulated run: the shells of store/server.py and store/client.py in their shortest form."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.cluster.member import _REPEATED
from shoal.cluster.messages import Letter, Ready
from shoal.store import replica as replicas
from shoal.store.batches import Batch
from shoal.store.letters import (
    FROM_DIRECTOR,
    TO_DIRECTOR,
    AtRest,
    Close,
    Closed,
    EpochOver,
    Finish,
    GoOn,
    Grant,
    Halt,
    Next,
    Open,
    Pause,
    Placed,
    Serve,
    Want,
)
from shoal.store.messages import Differs, Pulled, Push, Pushed, ShardMessage
from shoal.store.placement import Placement
from shoal.store.replica import Apply, Digest, Drop, Give, GoBack, Load, Replica, Report, Tell
from shoal.store.saves import AskToSave, Copied, Desk, Gathering, NotSaved, Save, Saved
from shoal.store.update import Ask, Compute, Keep, Over, Update
from shoal.wire.messages import Message

from .history import Gradient, Toy, Wrong
from .world import COORDINATOR, Process

if TYPE_CHECKING:
    from .simulation import Simulation

CALL = 0  # of the script: there is one training in a run
END = -1  # the place of the batch that stands for the end of an epoch
REST = -2  # the same, for a pause
WRITES = 0.02  # seconds, at most, that a server takes to write what it has copied


class Join(NamedTuple):
    """A process is there, or there again."""


class Seat:
    """A member's connection to the coordinator, as cluster/member.py has it."""

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
        self._say(Letter(TO_DIRECTOR.encode(message)))

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
        self.seat = Seat(self.sim, self.id)

    def hear(self, sender: str, *said: Any) -> None:
        match said:
            case (Letter(content),):
                self.read(FROM_DIRECTOR.decode(content))
            case (ShardMessage() as message, beside):
                self.hear_of_shard(sender, message, beside)
            case (Save() | Copied() | Saved() | NotSaved() as message,):
                self.hear_of_save(sender, message)

    def begin(self, late: bool) -> None:
        """Its script has come to the training."""
        raise NotImplementedError

    def read(self, letter: Message) -> None:
        raise NotImplementedError

    def hear_of_shard(self, sender: str, message: ShardMessage, beside: Any) -> None:
        raise NotImplementedError

    def hear_of_save(self, sender: str, message: Any) -> None:
        raise NotImplementedError


# Servers ----------------------------------------------------------------------------------------------


class Scribe:
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
        self._server.desk.look(())


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
        self.desk = Desk(held, lambda shard: self.toys[shard], Scribe(self), self._answer)  # type: ignore[arg-type,return-value]

    def begin(self, late: bool) -> None:
        self.seat.write(Serve(CALL))

    def read(self, letter: Message) -> None:
        match letter:
            case Placed(placement=placement):
                self._take(placement)
            case Closed():
                self.is_closed = True

    def hear_of_save(self, sender: str, message: Any) -> None:
        self.desk.hear(sender, message)
        self.desk.look(())

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
        self.desk.look(())

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
            case Tell(to, message, beside):
                self._send(to, message, beside)
            case Give(to, message):
                self._send(to, message, toy.copy())
            case Report(message):
                if isinstance(message, Differs):
                    sim.differences.append(message)
                self.seat.write(message)
            case Apply(point, update, _, gradient):
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
class Slot:
    """An update that a worker is at."""

    update: Update
    numbers: list[int]  # more than one if its lease ended and the same worker was given it again
    weights: dict[int, tuple[int, Toy]] = field(default_factory=dict)  # by shard: its origin then, and its state
    gradients: dict[int, Gradient] = field(default_factory=dict)


@dataclass
class Worker(Member):
    """One worker: its updates and their shells."""

    slowness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots: dict[Batch, Slot] = {}
        self.placement: Placement | None = None
        self.here = False
        self.turn = 0
        self.granted = 0  # the first turn that was not granted yet
        self.ended = -1  # the last epoch whose end was heard of
        self.waits_at = -1  # the last epoch at whose end it has come to the meeting
        self.is_at = -1  # the epoch of which it has a batch
        self.pauses = 0
        self.pausing = False
        self.rest: AtRest | None = None
        self.gathering: Gathering | None = None
        self._questions = itertools.count()

    def begin(self, late: bool) -> None:
        plan = self.sim.plan
        sizes = tuple(10 + shard for shard in range(plan.shards))
        if late:
            self.seat.ready()
        else:
            self.seat.write(Open(CALL, sizes, 0, plan.batches, plan.bound, plan.replicas, plan.ahead))

    def go_on(self, epoch: int) -> None:
        """All workers have met at the end of the epoch before this one."""
        if epoch < self.sim.plan.epochs:
            self.seat.write(Next(CALL, epoch, self.sim.plan.batches))

    def halt(self) -> None:
        self.seat.write(Halt(CALL, self.is_at))

    def finish(self) -> None:
        self.seat.write(Close(CALL))

    # Checkpoints

    def pause(self) -> None:
        self.pausing = True
        self.seat.write(Pause(CALL, self.pauses))

    def hear_of_save(self, sender: str, message: Any) -> None:
        if self.gathering is not None:
            self.gathering.handle(message)
            self._look_at_gathering()

    def _gather(self, rest: AtRest) -> None:
        assert self.placement is not None
        what = self.sim.watcher.rests(self, rest)
        self.gathering = Gathering(what, 1, self._questions)
        self._ask_to_save(self.gathering.take_views(self.placement.views, self.placement.servers))

    def _ask_to_save(self, asks: Sequence[AskToSave]) -> None:
        for ask in asks:
            self.sim.mark("Save")
            self.sim.world.send(self.id, ask.server, ask.message)
        self._look_at_gathering()

    def _look_at_gathering(self) -> None:
        gathering = self.gathering
        if gathering is None:
            return
        if self.pausing and (gathering.is_copied or gathering.is_over):
            self.seat.write(GoOn(CALL, self.pauses))
            self._forget_pause()
        if gathering.is_over:
            self.gathering = None
            self.sim.watcher.gathered(gathering)

    def _forget_pause(self) -> None:
        self.pausing, self.rest = False, None
        self.pauses += 1

    def read(self, letter: Message) -> None:
        match letter:
            case Placed(placement=placement, workers=workers):
                self._take(placement, self.id in workers)
            case Grant(turn=turn, batch=batch, number=number, view=view) if self.here:
                self.sim.watcher.granted(self, letter)
                if turn >= self.granted:  # else told again, by a coordinator that took over; it may be finished
                    self.granted = turn + 1
                    self._begin(batch, [number], view)
            case EpochOver(epoch=epoch) if epoch > self.ended:
                self.ended = epoch
                if self.placement is None:
                    raise Wrong(f"{self.id} hears of the end of epoch {epoch}, and not where the shards are")
                self._begin(Batch(epoch, END), [], self.placement.number)
            case AtRest(number=number, epoch=epoch) if self.here and self.pausing and number == self.pauses:
                if self.rest is None:
                    self.rest = letter
                    assert self.placement is not None
                    self._begin(Batch(epoch, REST), [], self.placement.number)

    def hear_of_shard(self, sender: str, message: ShardMessage, beside: Any) -> None:
        if isinstance(message, Pulled | Pushed) and message.batch in self.slots:
            slot = self.slots[message.batch]
            self.sim.watcher.heard(self, message)
            for decision in slot.update.handle(message):
                self._act(slot, decision, beside)

    def reconnected(self, peer: str) -> None:
        for slot in self.slots.values():
            self._ask(slot, slot.update.reconnected(peer))
        if self.gathering is not None:
            self._ask_to_save(self.gathering.reconnected(peer))

    def _take(self, placement: Placement, here: bool) -> None:
        self.placement = placement
        if not here:
            self.here = False
            self.slots = {batch: slot for batch, slot in self.slots.items() if batch.place == END}
            if self.pausing:
                self._forget_pause()
            if self.gathering is not None:
                self.gathering.fail("taken for lost")
            self.seat.ready()  # it may come back
        elif not self.here:
            self.here = True
            for _ in range(self.sim.plan.ahead):
                self._want()
        for slot in self.slots.values():
            self._ask(slot, slot.update.take_views(placement.views))
        if self.gathering is not None:
            self._ask_to_save(self.gathering.take_views(placement.views, placement.servers))

    def _want(self) -> None:
        self.turn += 1
        self.seat.write(Want(CALL, self.turn - 1))

    def _begin(self, batch: Batch, numbers: list[int], view: int) -> None:
        if batch in self.slots:
            self.slots[batch].numbers += [number for number in numbers if number not in self.slots[batch].numbers]
            return
        slot = self.slots[batch] = Slot(Update(batch, self.id, view, self.sim.plan.shards), numbers)
        at, busiest = sum(bool(other.numbers) for other in self.slots.values()), self.sim.busiest
        busiest[self.id, batch.epoch] = max(at, busiest[self.id, batch.epoch])
        assert self.placement is not None
        self._ask(slot, slot.update.take_views(self.placement.views))

    def _act(self, slot: Slot, decision: Any, beside: Any) -> None:
        batch = slot.update.batch
        match decision:
            case Keep(shard):
                assert self.placement is not None
                slot.weights[shard] = (self.placement.views[shard].origin, beside)
            case Compute() if batch.place == END:
                del self.slots[batch]
                self.sim.watcher.saw_the_end(self, batch.epoch, slot.weights)
                self.waits_at = batch.epoch
                self.sim.meet()
            case Compute() if batch.place == REST:
                del self.slots[batch]
                if self.rest is not None:
                    self.sim.watcher.saw_the_rest(self, self.rest, slot.weights)
                    self._gather(self.rest)
            case Compute():
                self.is_at = batch.epoch
                seconds = self.sim.world.random.uniform(0.003, 0.01) * self.slowness
                self.sim.world.after(seconds, partial(self.sim.world.awake, self.id, partial(self._computed, slot)))
            case Over(view, _, staleness):
                del self.slots[batch]
                for number in slot.numbers:
                    self.seat.write(Finish(CALL, batch, number, view, staleness))
                    self._want()

    def _computed(self, slot: Slot) -> None:
        if self.slots.get(slot.update.batch) is slot:
            for shard, (origin, toy) in slot.weights.items():
                value = hash((toy.value, shard, slot.update.batch.epoch, slot.update.batch.place))
                slot.gradients[shard] = Gradient(value, toy.history, origin)
            self._ask(slot, slot.update.computed())

    def _ask(self, slot: Slot, decisions: Sequence[Any]) -> None:
        for decision in decisions:
            assert isinstance(decision, Ask)
            message = decision.message
            beside = slot.gradients[message.shard] if isinstance(message, Push) else None
            self.sim.mark(type(message).__name__)
            self.sim.mark(f"{type(message).__name__} of {self.id}")
            self.sim.world.send(self.id, decision.server, message, beside)
