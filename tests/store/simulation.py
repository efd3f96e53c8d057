"""A run with parameter servers under one seed: the real decisions of every party, no process, no socket, no clock.

What is real: Replica, Update, Placement, LeaseBook, StalenessClock. What is not: the shells around them, which are
written here in their shortest form, and the tensors. A shard's state is a number; applying is neither commutative nor
idempotent, so a wrong order or an update too many is seen. Beside it stands what was applied, for the Watcher.

`play(plan)` runs one plan and checks it; a failing one is made smaller by `shrink` before it is told.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from shoal.store import replica as replicas
from shoal.store.batches import Batch
from shoal.store.leases import LeaseBook
from shoal.store.ledger import Ledger
from shoal.store.messages import CaughtUp, Differs, Pulled, Push, Pushed, ShardMessage
from shoal.store.placement import Placement, setbacks
from shoal.store.replica import Apply, Digest, Drop, Give, GoBack, Load, Replica, Report, Tell
from shoal.store.staleness import StalenessClock
from shoal.store.update import Ask, Compute, Keep, Over, Update

from .history import Gradient, Toy, Watcher, Wrong
from .plans import SILENCE, Fault, Plan
from .world import COORDINATOR, Process, World

NOTICED = 0.02  # seconds, at most, from a process's death to its loss
LEASE = 0.25
TICK = 0.05
RESTART = 0.05
LIMIT = 60.0  # seconds after which a run hangs
QUIET = 1.5  # seconds after the end, until which all is settled


# Messages to and from the coordinator -----------------------------------------------------------------


class Came(NamedTuple):
    """A process is there, or there again."""


class Want(NamedTuple):
    """A worker asks for its next update."""


class Granted(NamedTuple):
    batch: Batch
    number: int
    view: int


class Finished(NamedTuple):
    batch: Batch
    number: int
    over: Over


class Views(NamedTuple):
    placement: Placement
    workers: frozenset[str]


# Servers ----------------------------------------------------------------------------------------------


@dataclass
class Server(Process):
    """One server: its replicas and their shells."""

    sim: Simulation = field(kw_only=True)

    def __post_init__(self) -> None:
        shards = range(self.sim.plan.shards)
        self.replicas = {shard: Replica(shard, self.id, check_every=4) for shard in shards}
        self.toys = {shard: Toy() for shard in shards}
        self.number = 0

    def hear(self, sender: str, *said: Any) -> None:
        match said:
            case (Views(placement),):
                self._take(placement)
            case (ShardMessage() as message, beside):
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
        if self.id not in placement.servers and placement.number > self.number:
            self.sim.world.send(self.id, COORDINATOR, Came())
        self.number = placement.number

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
                sim.mark(type(message).__name__)
                sim.world.send(self.id, COORDINATOR, message)
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
class Worker(Process):
    """One worker: its updates and their shells."""

    sim: Simulation = field(kw_only=True)
    slowness: float = 1.0

    def __post_init__(self) -> None:
        self.slots: dict[Batch, Slot] = {}
        self.placement: Placement | None = None
        self.here = False

    def hear(self, sender: str, *said: Any) -> None:
        match said:
            case (Views(placement, workers),):
                self._take(placement, workers)
            case (Granted(batch, number, view),):
                self._begin(batch, number, view)
            case (Pulled() | Pushed() as message, beside) if message.batch in self.slots:
                slot = self.slots[message.batch]
                self.sim.watcher.heard(self, message)
                for decision in slot.update.handle(message):
                    self._act(slot, decision, beside)

    def reconnected(self, peer: str) -> None:
        for slot in self.slots.values():
            self._ask(slot, slot.update.reconnected(peer))

    def _take(self, placement: Placement, workers: frozenset[str]) -> None:
        if self.sim.skips(placement.number):
            return
        self.placement = placement
        if self.id not in workers:
            self.slots.clear()
            if self.here:
                self.sim.world.send(self.id, COORDINATOR, Came())
            self.here = False
            return
        if not self.here:
            self.here = True
            for _ in range(self.sim.plan.ahead):
                self.sim.world.send(self.id, COORDINATOR, Want())
        for slot in self.slots.values():
            self._ask(slot, slot.update.take_views(placement.views))

    def _begin(self, batch: Batch, number: int, view: int) -> None:
        if not self.here:
            return  # it was given to the one that was lost
        if batch in self.slots:
            self.slots[batch].numbers.append(number)
            return
        slot = self.slots[batch] = Slot(Update(batch, self.id, view, self.sim.plan.shards), [number])
        assert self.placement is not None
        self._ask(slot, slot.update.take_views(self.placement.views))

    def _act(self, slot: Slot, decision: Any, beside: Any) -> None:
        match decision:
            case Keep(shard):
                assert self.placement is not None
                slot.weights[shard] = (self.placement.views[shard].origin, beside)
            case Compute():
                seconds = self.sim.world.random.uniform(0.003, 0.01) * self.slowness
                self.sim.world.after(seconds, partial(self.sim.world.awake, self.id, partial(self._computed, slot)))
            case Over():
                del self.slots[slot.update.batch]
                for number in slot.numbers:
                    self.sim.world.send(self.id, COORDINATOR, Finished(slot.update.batch, number, decision))
                    self.sim.world.send(self.id, COORDINATOR, Want())

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


# The coordinator --------------------------------------------------------------------------------------


class Coordinator(Process):
    """Who is in the run, and the two books: leases and staleness. It is never lost here."""

    def __init__(self, sim: Simulation, servers: Sequence[str], workers: Sequence[str]) -> None:
        super().__init__(COORDINATOR)
        self.sim = sim
        plan = sim.plan
        sizes = [10 + shard for shard in range(plan.shards)]
        self.placement = Placement.first(1, servers, plan.replicas, sizes)
        self.workers = set(workers)
        self.book = LeaseBook(plan.batches, ahead=plan.ahead)
        self.clock = StalenessClock(plan.bound)
        for worker in workers:
            self.clock.join(worker)
        self.waiting: list[str] = []
        self.counted: list[Batch] = []
        self.differences: list[Differs] = []

    @property
    def is_over(self) -> bool:
        return self.book.is_over and self.book.epoch == self.sim.plan.epochs - 1

    def hear(self, sender: str, *said: Any) -> None:
        match said[0]:
            case Came():
                self._came(sender)
            case Want() if sender in self.workers:
                self.waiting.append(sender)
            case Finished(batch, number, over):
                self._finished(sender, batch, number, over)
            case CaughtUp(shard, view, server):
                self.placement = self.placement.caught_up(view, shard, server)
                if not self.placement.is_settled:
                    self.next_view(self.placement.servers)
            case Differs() as differs:
                self.differences.append(differs)
        self._deal()

    def start(self) -> None:
        self._publish()
        self._tick()

    def lost(self, id: str) -> None:
        if id in self.workers:
            self.workers.remove(id)
            self.waiting = [worker for worker in self.waiting if worker != id]
            self.book.lost(id)
            self.clock.lose(id)
            self.next_view(self.placement.servers)
        elif id in self.placement.servers:
            self.next_view([server for server in self.placement.servers if server != id])
        self._deal()

    def next_view(self, servers: Sequence[str]) -> None:
        before = self.placement
        self.placement = before.next(before.number + 1, servers)
        self.sim.watcher.lost_for_good(setbacks(before, self.placement), self.counted)
        self._publish()

    def _came(self, id: str) -> None:
        if id.startswith("server"):
            if id not in self.placement.servers:
                self.next_view([*self.placement.servers, id])
        elif id not in self.workers:
            self.workers.add(id)
            self.clock.join(id)
            self._publish()

    def _finished(self, worker: str, batch: Batch, number: int, over: Over) -> None:
        self.clock.finish(worker, number, over.staleness)
        if not self.placement.keeps(over.view):
            self.book.give_back(worker, batch)
        elif self.book.acknowledge(batch):
            self.counted.append(batch)
        if self.book.is_over and not self.is_over:
            self.book = restored(self.book)
            self.book.next_epoch(self.sim.plan.batches)

    def _deal(self) -> None:
        for worker in list(self.waiting):
            if not self.clock.waits_for(worker):
                lease = self.book.take(worker, self.sim.world.time + LEASE)
                if lease is not None:
                    self.waiting.remove(worker)
                    granted = Granted(lease.batch, self.clock.begin(worker), self.placement.number)
                    self.sim.world.send(COORDINATOR, worker, granted)

    def _publish(self) -> None:
        self.sim.mark("view")
        for id in (*self.sim.world.processes,):
            if id != COORDINATOR:
                self.sim.world.send(COORDINATOR, id, Views(self.placement, frozenset(self.workers)))

    def _tick(self) -> None:
        self.book.expire(self.sim.world.time)
        self._deal()
        self.sim.world.after(TICK, self._tick)


def restored(book: LeaseBook) -> LeaseBook:
    """Written down and read again."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=LeaseBook)


# The run ----------------------------------------------------------------------------------------------


class Simulation:
    """One run under one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed, plan.late, plan.repeated)
        self.watcher = Watcher(self)
        self.checkpoints = {shard: (0, Ledger(), Toy()) for shard in range(plan.shards)}
        self.fired: Counter[str] = Counter()
        self._servers, self._workers = itertools.count(plan.servers), itertools.count(plan.workers)
        self._restarts = plan.restarts
        self._marks: Counter[str] = Counter()
        self._waiting = list(plan.faults)
        servers = [f"server-{number}" for number in range(plan.servers)]
        workers = [f"worker-{number}" for number in range(plan.workers)]
        self.coordinator = Coordinator(self, servers, workers)
        slowness = {"worker-0": plan.slow}
        self.world.processes = {
            COORDINATOR: self.coordinator,
            **{id: Server(id, sim=self) for id in servers},
            **{id: Worker(id, sim=self, slowness=slowness.get(id, 1.0)) for id in workers},
        }

    def play(self, limit: float = LIMIT) -> Simulation:
        self.mark("start")
        self.coordinator.start()
        if not self.world.run(lambda: self.coordinator.is_over, limit):
            raise Wrong(f"the run hangs: {self._state()}")
        self._waiting.clear()
        quiet = self.world.time + QUIET
        self.world.run(lambda: False, quiet)
        self.watcher.at_the_end()
        return self

    def skips(self, number: int) -> bool:
        """A process that hears of a view when there is a newer one may never look at it."""
        return number < self.coordinator.placement.number and self.world.random.random() < 0.3

    def save(self, shard: int, replica: Replica, toy: Toy) -> None:
        """Now and then a primary writes a checkpoint. Not one from before the shard went back to another."""
        origin, due = self.coordinator.placement.views[shard].origin, self.checkpoints[shard][0] + 5
        if replica.point.version >= due and replica.point.view >= origin:
            self.checkpoints[shard] = (replica.point.version, replica.ledger, toy.copy())

    # Faults -----------------------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        """Something has happened that faults may wait for."""
        self._marks[name] += 1
        if self._waiting:
            for fault in [fault for fault in self._waiting if (fault.mark, fault.nth) == (name, self._marks[name])]:
                self._waiting.remove(fault)
                self.world.after(fault.delay, partial(self._fire, fault))

    def _fire(self, fault: Fault) -> None:
        who = self._resolve(fault.who, fault.shard)
        match fault.kind:
            case "come":
                self._start(f"server-{next(self._servers)}")
            case "kill" if who in self.world.processes and self._may_lose(who):
                self._kill(who)
            case "pause" if self._may_stop(who, fault.seconds):
                self._pause(who, fault.seconds)
            case "cut":
                self.world.cut(who, self._resolve(fault.other, fault.shard), min(fault.seconds, 0.3))
            case "flip" if isinstance(server := self.world.processes.get(who), Server):
                toy = server.toys[fault.shard % self.plan.shards]
                toy.value ^= 1 << 7
                toy.flawed = True
            case _:
                return
        self.fired[fault.kind] += 1

    def _resolve(self, who: str, shard: int) -> str:
        view = self.coordinator.placement.views[shard % self.plan.shards]
        match who:
            case "primary":
                return view.primary or ""
            case "backup":
                return view.backups[0] if view.backups else ""
            case "newcomer":
                return view.newcomers[0] if view.newcomers else ""
        return who

    def _may_lose(self, id: str) -> bool:
        """Something must be left to go on with: a worker, and, unless the plan says otherwise, one of every shard."""
        here = {
            other
            for other, process in self.world.processes.items()
            if process.given_up_until <= self.world.time and other != id
        }
        if not any(other in self.coordinator.workers for other in here):
            return False
        if self.plan.setbacks:
            return self._restarts > 0 or any(server in here for server in self.coordinator.placement.servers)
        return all({view.primary, *view.backups} & here for view in self.coordinator.placement.views)

    def _may_stop(self, id: str, seconds: float) -> bool:
        process = self.world.processes.get(id)
        if process is None or self.world.time < process.stopped_until:
            return False
        return seconds <= SILENCE or self._may_lose(id)

    def _kill(self, id: str) -> None:
        self.world.end(id)
        self.world.after(self.world.random.uniform(0.0, NOTICED), partial(self.coordinator.lost, id))
        if self._restarts:
            self._restarts -= 1
            number = next(self._servers if id.startswith("server") else self._workers)
            replacement = f"{id.partition('-')[0]}-{number}"
            self.world.after(RESTART, partial(self._start, replacement))

    def _pause(self, id: str, seconds: float) -> None:
        process = self.world.processes[id]
        process.stopped_until = self.world.time + seconds
        if seconds > SILENCE:
            process.given_up_until = process.stopped_until
            self.world.after(SILENCE, partial(self._give_up, id))

    def _give_up(self, id: str) -> None:
        if id in self.world.processes:
            self.coordinator.lost(id)

    def _start(self, id: str) -> None:
        self.world.processes[id] = Server(id, sim=self) if id.startswith("server") else Worker(id, sim=self)
        self.world.send(id, COORDINATOR, Came())

    def _state(self) -> str:
        coordinator = self.coordinator
        waits = {worker: coordinator.clock.waits_for(worker) for worker in coordinator.waiting}
        return f"{coordinator.book}, waiting {waits}, {coordinator.placement.views}"


def play(plan: Plan) -> Simulation:
    """One run. Wrong, with the smallest plan that still fails, if a promise is broken."""
    try:
        return Simulation(plan).play()
    except Wrong as wrong:
        smaller, why = shrink(plan, wrong)
        faults = "".join(f"\n    {fault}" for fault in smaller.faults)
        raise Wrong(f"seed {plan.seed}: {why}\n  {dataclasses.replace(smaller, faults=())}{faults}") from wrong


def shrink(plan: Plan, wrong: Wrong) -> tuple[Plan, Wrong]:
    """Drops faults, one by one, while it still fails; then makes the rest as plain as it can be."""

    def fails(smaller: Plan) -> Wrong | None:
        try:
            Simulation(smaller).play()
        except Wrong as error:
            return error
        return None

    plainer = Plan(plan.seed)
    shrunk = True
    while shrunk:
        shrunk = False
        candidates = [
            dataclasses.replace(plan, faults=(*plan.faults[:i], *plan.faults[i + 1 :])) for i in range(len(plan.faults))
        ]
        candidates += [
            dataclasses.replace(plan, **{name: getattr(plainer, name)})
            for name in ("late", "repeated", "slow", "ahead", "restarts", "shards", "workers", "servers")
            if getattr(plan, name) != getattr(plainer, name)
        ]
        for candidate in candidates:
            if candidate.replicas <= candidate.servers and (error := fails(candidate)) is not None:
                plan, wrong, shrunk = candidate, error, True
                break
    return plan, wrong
