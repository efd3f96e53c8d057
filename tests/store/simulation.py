"""A run with parameter servers under one seed: the real decisions of every party, no process, no socket, no clock.

What is real: Director, Replica, WorkerState, Placement, LeaseBook, StalenessClock, and the messages. What is not: the
shells around them, which are written in members.py and coordinator.py in their shortest form; the meetings of the
workers; and the tensors. A shard's state is a number; applying is neither commutative nor idempotent, so a wrong order
or an update too many is seen. Beside it stands what was applied, for the Watcher.

`play(plan)` runs one plan and checks it; a failing one is made smaller by `shrink` before it is told.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from functools import partial
from typing import TypeVar

from shoal.store.decisions.director import Training
from shoal.store.decisions.placement import Placement
from shoal.store.decisions.replica import Replica
from shoal.store.values.ledger import Ledger
from shoal.store.values.messages import Differs
from shoal.store.values.operations import Batch

from .coordinator import NOTICED, Coordinator, Record
from .history import Toy, Watcher, Wrong
from .members import Member, Server, Worker
from .plans import CLOSING, SILENCE, Fault, Plan
from .world import COORDINATOR, World

START = 0.01  # seconds within which the first members' scripts come to the training
RESTART = 0.05
LIMIT = 60.0  # seconds after which a run hangs
QUIET = 1.5  # seconds after the last epoch, until which all is settled

M = TypeVar("M", bound=Member)


class Simulation:
    """One run under one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed, plan.late, plan.repeated)
        self.watcher = Watcher(self)
        self.checkpoints = {shard: (0, Ledger(), Toy()) for shard in range(plan.shards)}
        self.fired: Counter[str] = Counter()
        self.differences: list[Differs] = []
        self.said: list[str] = []  # to the user
        self.halted: set[int] = set()  # epochs that somebody wanted to end early
        self.busiest: Counter[tuple[str, int]] = Counter()  # worker, epoch -> the most updates that it was at
        self.met = -1  # the last epoch at whose end all workers have met
        self._servers, self._workers = itertools.count(plan.servers), itertools.count(plan.workers)
        self._restarts = plan.restarts
        self._marks: Counter[str] = Counter()
        self._waiting = list(plan.faults)
        self._closed: Training | None = None
        self._awaited = {fault.mark for fault in plan.faults}
        servers = [f"server-{number}" for number in range(plan.servers)]
        workers = [f"worker-{number}" for number in range(plan.workers)]
        self.started = set(servers)
        first = Record(tuple(workers), {id: f"unix:{id}" for id in servers}, frozenset(), None)
        self.coordinator = Coordinator(self, first, linked=(*workers, *servers))
        self.written = self.coordinator.record()  # all have joined, and were told so
        slowness = {"worker-0": plan.slow}
        self.world.processes = {
            COORDINATOR: self.coordinator,
            **{id: Server(id, sim=self) for id in servers},
            **{id: Worker(id, sim=self, slowness=slowness.get(id, 1.0)) for id in workers},
        }

    def play(self, limit: float = LIMIT) -> Simulation:
        self.mark("start")
        self.coordinator.start()
        for id in self.written.view + tuple(self.written.servers):
            self._member(id).coordinator_link.is_taken = True
            self.world.after(self.world.random.uniform(0.0, START), partial(self._begin, id, late=False))
        if not self.world.run(lambda: self.met == self.plan.epochs - 1, limit):
            raise Wrong(f"the run hangs: {self._state()}")
        self._waiting = [fault for fault in self._waiting if fault.mark in CLOSING]
        self.world.run(lambda: False, self.world.time + QUIET)
        self.watcher.at_the_end()
        self._closed = self.training
        for worker in self._all(Worker):
            worker.finish()
        if not self.world.run(lambda: all(server.is_closed for server in self._all(Server)), self.world.time + QUIET):
            raise Wrong(f"the training is over, and not everybody knows: {self._state()}")
        return self

    def meet(self) -> None:
        """All workers of the view come together at the end of an epoch; whoever is not in it is not waited for."""
        workers = [self.world.processes.get(id) for id in self.coordinator.view]
        if workers and all(isinstance(worker, Worker) and worker.waits_at > self.met for worker in workers):
            self.met += 1
            for worker in workers:
                assert isinstance(worker, Worker)
                go_on = partial(worker.go_on, self.met + 1)
                self.world.after(self.world.random.uniform(0.0, 0.003), partial(self.world.awake, worker.id, go_on))

    def skips(self, number: int) -> bool:
        """A server that hears of a view when there is a newer one may never look at it."""
        placement = self.coordinator.placement
        return placement is not None and number < placement.number and self.world.random.random() < 0.3

    def save(self, shard: int, replica: Replica, toy: Toy) -> None:
        """Now and then a primary writes a checkpoint. Not one from before the shard went back to another."""
        due = self.checkpoints[shard][0] + 5
        if replica.point.version >= due and replica.point.view >= self.placement.views[shard].origin:
            self.checkpoints[shard] = (replica.point.version, replica.ledger, toy.copy())

    @property
    def placement(self) -> Placement:
        """The newest, as the coordinator of now knows it, or the next one will."""
        assert self.training.placement is not None, "nothing is placed yet"
        return self.training.placement

    @property
    def training(self) -> Training:
        """As it is, or as it was before it was closed."""
        training = self.coordinator.training or self._closed
        assert training is not None, "nothing is open yet"
        return training

    @property
    def told(self) -> Counter[str]:
        """How many messages to and of the director of each kind were sent."""
        return self._marks

    def history(self, shard: int) -> list[tuple[Batch, str]]:
        """What was applied to a shard, and who had computed it."""
        primary = self.world.processes[self.placement.views[shard].primary or ""]
        assert isinstance(primary, Server)
        return primary.toys[shard].history

    # Faults -----------------------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        """Something has happened that faults may wait for. The coordinator may die in the middle of something."""
        self._marks[name] += 1
        if name in self._awaited:
            for fault in [fault for fault in self._waiting if (fault.mark, fault.nth) == (name, self._marks[name])]:
                self._waiting.remove(fault)
                if fault.kind == "crash" and not fault.delay:
                    self._fire(fault)
                else:
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
            case "halt" if isinstance(worker := self.world.processes.get(who), Worker) and worker.is_at > self.met:
                self.halted.add(worker.is_at)
                worker.halt()
            case "save" if isinstance(worker := self.world.processes.get(who), Worker):
                if (
                    not worker.state.is_here
                    or worker.state.is_pausing
                    or worker.gathering is not None
                    or worker.waits_at > self.met
                ):
                    return
                worker.pause()
            case "crash" if COORDINATOR in self.world.processes and self._may_crash():
                self._crash(fault.seconds)
            case _:
                return
        self.fired[fault.kind] += 1

    def _resolve(self, who: str, shard: int) -> str:
        placement = self.coordinator.placement
        if who not in ("primary", "backup", "newcomer"):
            return who
        if placement is None:
            return f"server-{shard % self.plan.servers}"
        view = placement.views[shard % self.plan.shards]
        match who:
            case "primary":
                return view.primary or ""
            case "backup":
                return view.backups[0] if view.backups else ""
            case _:
                return view.newcomers[0] if view.newcomers else ""

    def _here(self) -> set[str]:
        now = self.world.time
        return {id for id, process in self.world.processes.items() if process.given_up_until <= now}

    def _may_lose(self, id: str) -> bool:
        """Something must be left to go on with: a worker, and, unless the plan says otherwise, one of every shard."""
        here = self._here() - {id}
        if not any(worker in here for worker in self.coordinator.view):
            return False
        placement = self.coordinator.placement
        if placement is None or self.plan.setbacks:
            return self._restarts > 0 or any(server in here for server in self.coordinator.servers)
        return _covers(placement, here)

    def _may_crash(self) -> bool:
        """The next one must not believe, of a shard, that all who have it are lost."""
        next_one = Coordinator(self, self.written)
        return self.plan.setbacks or next_one.placement is None or _covers(next_one.placement, self._here())

    def _may_stop(self, id: str, seconds: float) -> bool:
        process = self.world.processes.get(id)
        if process is None or self.world.time < process.stopped_until:
            return False
        return seconds <= SILENCE or self._may_lose(id)

    def _kill(self, id: str) -> None:
        self._end(id)
        self.world.after(self.world.random.uniform(0.0, NOTICED), partial(self._lose, id))

    def _end(self, id: str) -> None:
        self.world.end(id)
        if self._restarts:
            self._restarts -= 1
            number = next(self._servers if id.startswith("server") else self._workers)
            replacement = f"{id.partition('-')[0]}-{number}"
            self.world.after(RESTART, partial(self._start, replacement))

    def _lose(self, id: str) -> None:
        if self.is_up(self.coordinator):
            self.coordinator.lose(id)

    def _pause(self, id: str, seconds: float) -> None:
        process = self.world.processes[id]
        process.stopped_until = self.world.time + seconds
        if seconds > SILENCE:
            process.given_up_until = process.stopped_until
            self.world.after(SILENCE, partial(self._give_up, id))

    def _give_up(self, id: str) -> None:
        if id in self.world.processes:
            self._lose(id)

    def _start(self, id: str) -> None:
        self.world.processes[id] = Server(id, sim=self) if id.startswith("server") else Worker(id, sim=self)
        if id.startswith("server"):
            self.started.add(id)
        if self.is_up(self.coordinator):
            self._member(id).coordinator_link.join()
        self._begin(id, late=True)

    def _begin(self, id: str, late: bool) -> None:
        if id in self.world.processes:
            self.world.awake(id, partial(self._member(id).begin, late))

    # The coordinator --------------------------------------------------------------------------------

    def is_up(self, coordinator: Coordinator) -> bool:
        return self.world.processes.get(COORDINATOR) is coordinator

    def hang_up(self, id: str) -> None:
        """A server that is stopped, and was given up, comes back when it wakes up."""
        if id in self.world.processes:
            self.world.awake(id, self._member(id).coordinator_link.join)

    def refuse(self, id: str) -> None:
        """Whom a coordinator has lost, the next one does not want."""
        if id in self.world.processes:
            self._end(id)

    def _crash(self, seconds: float) -> None:
        self.world.end(COORDINATOR)
        self.coordinator = Coordinator(self, self.written)
        self.world.after(seconds, self._take_over)

    def _take_over(self) -> None:
        self.world.replace(self.coordinator)
        self.coordinator.start()
        for member in self._all(Member):
            member.coordinator_link.is_taken = False
            seconds = self.world.random.uniform(0.0, NOTICED)
            self.world.after(seconds, partial(self.world.awake, member.id, member.coordinator_link.join))

    def _member(self, id: str) -> Member:
        member = self.world.processes[id]
        assert isinstance(member, Member)
        return member

    def _all(self, kind: type[M]) -> list[M]:
        return [process for process in self.world.processes.values() if isinstance(process, kind)]

    def _state(self) -> str:
        up = "up" if self.is_up(self.coordinator) else "down"
        return f"the coordinator is {up}; {self.coordinator.view}; {self.coordinator.training}"


def _covers(placement: Placement, here: set[str]) -> bool:
    return all({view.primary, *view.backups} & here for view in placement.views)


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
