"""An elastic run under one seed: the real coordinator's decisions, the real code of every worker, no process.

What is real: Membership and its record; Seat with its thread, Session, Company, resync, form, Meeting, Exchanges,
PeerGroup, the exchange over sockets, Reduction and the notes. What is not: sockets, processes, time (machine.py), the
shells of the coordinator and the launcher, and the script, which walks through the calls of a Keras script as
hook/fit.py does.

`play(plan)` runs one plan and checks it; a failing one is made smaller by `shrink` before it is told.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from greenlet import GreenletExit

from shoal.cluster.events import (
    Closed,
    Decision,
    Event,
    Evidence,
    Exited,
    Fence,
    HangUp,
    Over,
    Report,
    Said,
    Started,
    Tell,
    Tick,
    Want,
)
from shoal.cluster.identity import Identity
from shoal.cluster.member import Seat
from shoal.cluster.membership import Membership, Record
from shoal.cluster.messages import (
    Admit,
    Beat,
    Decline,
    Done,
    DrainRequest,
    Finished,
    Join,
    Ready,
    ScaleRequest,
    ViewChange,
)
from shoal.cluster.messages import End as RunEnd
from shoal.cluster.view import Member, View
from shoal.collectives.abstract import AbstractGroup, Result
from shoal.collectives.messages import Published, Reduced
from shoal.config import Deadlines, RunConfig
from shoal.errors import CutOff, RunEnded, WireError
from shoal.hook.calls import decode_plain, encode_plain
from shoal.session import Session
from shoal.strategies.allreduce import Exchanged, Reduction
from shoal.strategies.notes import Note, leavers, newcomers, stopped
from shoal.strategies.schema import Combine, Entry, Schema
from shoal.wire.messages import Message

from .machine import COORDINATOR, End, Process, SimulatedListener, World, current, simulated

TICK = 0.1
DEADLINES = Deadlines(silence=2.0, stall=12.0, connect=5.0, start=15.0)
IDENTITY = Identity("jax", "0.10", "3.15", "2.4", 1, 4, "x86_64 avx2")
OUTSIDE = 76  # the exit code of a worker without which the run went on
ENDED = 75  # the exit code of a worker whose run was over before its script was
BATCH = 16
STRAGGLERS = 20.0  # seconds after the end, until which everyone who can has ended
NOBODY = -1  # the link of one who asks from a terminal and does not wait for the answer
STATED = (0, ENDED, 130)  # exit codes of workers that nobody replaces


class Wrong(AssertionError):
    """A promise was broken."""


# The plan ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What happens to whom, so many seconds after a mark ("start", "view 2", "step 4", "ready", "admit", "done", …)."""

    # Of workers: kill, pause, cut, away, fail, ghost, drain. Of the run: standby, scale (to `workers`). Of the
    # coordinator: coordinator (it is killed), torn (it is killed while it tells a view).
    kind: str
    who: int | str = 0  # a worker's number; or "chief", "newest", "last" (of the view), "admitter"
    mark: str = "start"
    delay: float = 0.0
    seconds: float = 0.0  # of a pause or a cut
    other: int | str = 1  # from whom it is cut off
    error: str = "boom"
    workers: int = 2


@dataclass(frozen=True)
class Plan:
    """A run and all that goes wrong in it."""

    seed: int
    workers: int = 3
    least: int = 1
    pieces: int = 4
    restarts: int = 2  # per place
    fences_kill: bool = True  # the fenced are on the coordinator's host
    late: float = 0.0
    lost_beats: float = 0.0
    repeats: float = 0.0  # of what is said to the coordinator
    validates: bool = True
    nested: bool = False  # a callback evaluates at the end of each epoch
    stall: float = DEADLINES.stall
    stop_at: int | None = None  # the callbacks of the first fit stop it after so many steps
    faults: tuple[Fault, ...] = ()


OTHER_KINDS = (
    "cut",
    "away",
    "fail",
    "ghost",
    "standby",
    "standby",
    "drain",
    "scale",
    "coordinator",
    "coordinator",
    "torn",
)


def random_plan(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    workers = chance.choice((2, 2, 3, 3, 3, 4, 4, 5))
    plan = Plan(
        seed,
        workers,
        least=chance.choice((1, 1, 2, workers)),
        pieces=chance.choice((workers, 4, 5, 8)) if workers < 5 else 8,
        restarts=chance.choice((0, 1, 2, 3)),
        fences_kill=chance.random() < 0.6,
        late=chance.choice((0.0, 0.0, 0.02, 0.1)),
        lost_beats=chance.choice((0.0, 0.0, 0.2)),
        repeats=chance.choice((0.0, 0.1)),
        validates=chance.random() < 0.7,
        nested=chance.random() < 0.3,
        stop_at=chance.choice((None, None, None, 2, 4)),
    )
    return dataclasses.replace(plan, faults=tuple(_random_faults(chance, plan)))


def _random_faults(chance: random.Random, plan: Plan) -> list[Fault]:
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4))):
        mark, delay = _random_moment(chance)
        who: int | str = chance.choice((*range(plan.workers), "chief", "newest", "newest", "last", "admitter"))
        kind = chance.choice(("kill",) * 8 + ("pause",) * 3 + OTHER_KINDS)
        seconds = chance.choice((chance.uniform(0.1, 1.2), chance.uniform(3.0, 20.0)))
        other: int | str = chance.choice((*range(plan.workers), "chief", "last"))
        error, count = chance.choice(("boom", "bang")), chance.randint(1, plan.workers + 1)
        faults.append(Fault(kind, who, mark, delay, seconds, other, error, count))
        if kind == "kill" and chance.random() < 0.3:  # several at once, or one more while the others recover
            faults.append(Fault("kill", chance.choice((*range(plan.workers), "newest", "chief")), mark, delay))
    return faults


def _random_moment(chance: random.Random) -> tuple[str, float]:
    marks = (
        ("start", chance.uniform(0.0, 6.0)),
        (f"view {chance.randint(1, 5)}", chance.expovariate(1 / 0.05)),
        (f"view {chance.randint(2, 5)}", chance.expovariate(1 / 0.01)),
        (f"step {chance.randint(0, 9)}", chance.expovariate(1 / 0.01)),
        ("ready", chance.expovariate(1 / 0.1)),
        ("let in", chance.expovariate(1 / 0.01)),
        ("admit", chance.expovariate(1 / 0.005)),
        ("evaluate", chance.expovariate(1 / 0.02)),
        ("done", chance.expovariate(1 / 0.01)),
    )
    return chance.choice(marks)


# What the run must come to ----------------------------------------------------------------------------

EPOCHS, STEPS = {"first": 2, "second": 1}, 3
FIRST_WEIGHTS = 1


def gradient(weights: int, what: str, epoch: int, step: int, piece: int) -> int:
    mixed = weights * 31 + len(what) * 7 + epoch * 13 + step * 17 + piece * 101 + 1
    return mixed * 2654435761 % 2**31


def updated(weights: int, total: int) -> int:
    return (weights * 6364136223846793005 + total) % 2**61


def expected(plan: Plan) -> list[tuple[str, int, int, int]]:
    """All steps in their order, with the weights after each: (fit, epoch, step, weights)."""
    weights, steps = FIRST_WEIGHTS, []
    for name, epochs in EPOCHS.items():
        done = 0
        for epoch in range(epochs):
            for step in range(STEPS):
                total = sum(gradient(weights, name, epoch, step, piece) for piece in range(plan.pieces))
                weights = updated(weights, total)
                steps.append((name, epoch, step, weights))
                done += 1
                if name == "first" and done == plan.stop_at:
                    break
            if name == "first" and plan.stop_at is not None and done >= plan.stop_at:
                break
    return steps


# A worker's script ------------------------------------------------------------------------------------


class Position(msgspec.Struct):
    """Where a fit stands, between two steps."""

    fit: str
    seed: str = ""
    epoch: int = 0
    step: int = 0
    total: int = 0
    calls: int = 0
    stop: bool = False


class Script:
    """What the user's script and the hook do in one worker."""

    def __init__(self, sim: Simulation, process: Process, run: Session) -> None:
        self.sim = sim
        self.plan = sim.plan
        self.process = process
        self.run = run
        self.weights = FIRST_WEIGHTS
        self.knows = not run.company.is_late  # its weights are the run's
        self.fails: str | None = None
        self.sums = Schema(
            [
                Entry("gradient", Combine.SUM, "int64", (1,)),
                Entry("count", Combine.SUM, "int64", (self.plan.pieces,)),
                Entry("who", Combine.SUM, "int64", (self.plan.pieces,)),
            ]
        )

    def execute(self) -> None:
        self.work(0.05)
        for name in EPOCHS:
            self.work(0.02)
            fit = partial(self._fit, name)
            returned = self.run.calls.count(fit, encode_plain, decode_plain, waits=False)
            self.sim.watcher.returned(self, name, returned)
            if name == "first":
                self.work(0.02)
                self.evaluate("between the fits")

    def evaluate(self, name: str) -> None:
        returned = self.run.calls.count(lambda call: self._evaluate(name), encode_plain, decode_plain)
        self.sim.watcher.returned(self, name, returned)

    def work(self, seconds: float) -> None:
        """Takes about that long; the script may fail meanwhile."""
        task = current()
        task.sleep(seconds * (0.5 + self.sim.world.random.random()))
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise ValueError(error)

    def agree(self, what: str, value: bytes) -> list[bytes]:
        told = self.run.company.gather(what, value)
        self.sim.watcher.told(self, what, told.members, told.values)
        return told.values

    def reduction(self, what: str | None) -> Reduction:
        return Reduction(self.run.company, self.sums, self.plan.pieces, what)

    def arrays(self, what: str, epoch: int, step: int, piece: int) -> list[np.ndarray[Any, Any]]:
        """One piece: what it contributes, that it has been counted, and by whom."""
        count, who = np.zeros(self.plan.pieces, np.int64), np.zeros(self.plan.pieces, np.int64)
        count[piece], who[piece] = 1, 1 + int(self.process.name.rpartition("-")[2])
        return [np.array([gradient(self.weights, what, epoch, step, piece)]), count, who]

    def _fit(self, name: str, call: int) -> Any:
        return Fit(self, name, call).run()

    def _evaluate(self, name: str) -> int:
        """As hook/evaluate.py does: one act that takes data together, agrees on names and reduces."""
        reduction = self.reduction(None)

        def act(group: AbstractGroup) -> Result:
            self.sim.mark("evaluate")
            self.work(0.05)
            names = group.gather(f"{name}: names of logs", b"loss")
            reduced = reduction.reduce(
                group,
                name,
                self.plan.pieces,
                lambda piece: (self.arrays(name, 0, 0, piece), 1.0),
                lambda: Note(0),
            )
            return Result([names[0], *reduced.values], reduced.arrays)

        try:
            result = self.run.company.commit(act)
            exchanged = reduction.exchanged(Result(result.values[1:], result.arrays))
            self.sim.watcher.counted(self, name, exchanged)
            return int(exchanged.totals[0][0])
        finally:
            reduction.close()


class Fit:
    """As hook/fit.py's Training does."""

    def __init__(self, script: Script, name: str, call: int) -> None:
        self._script = script
        self._run = script.run
        self._sim = script.sim
        self._name = name
        self._call = call
        self.stop = False
        self.at = Position(name)
        self._newcomers: tuple[str, ...] = ()
        self._leavers: tuple[str, ...] = ()
        if not self._run.company.is_late:
            self.at.seed = script.agree(f"{name}: the seed", script.process.name.encode())[0].decode()
        self._reduction = script.reduction(name)

    def run(self) -> Any:
        script = self._script
        if self._run.company.is_late:
            over = self._run.company.enter(self, self._call)
            if over is not None:
                return decode_plain(self._run.calls.unpack(over))
        else:
            script.agree(f"{self._name}: digests", str(script.weights).encode())
            chiefs = self._run.company.broadcast(f"{self._name}: weights", [np.array([script.weights])])
            script.weights = int(chiefs[0][0])
            script.agree(f"{self._name}: the first epoch", b"0")
        while self.at.epoch < EPOCHS[self._name]:
            self._epoch(self.at.epoch)
            if self.stop:
                break
        self._reduction.close()
        return script.weights

    def give(self) -> Result:
        self.at.calls, self.at.stop = self._run.calls.number, self.stop
        self._sim.watcher.gave(self._script, self.at)
        return Result([encode_plain(self.at)], [np.array([self._script.weights])])

    def take(self, given: Result) -> None:
        self.at = msgspec.msgpack.decode(given.values[0], type=Position)
        self.stop, self._run.calls.number = self.at.stop, self.at.calls
        self._script.weights = int(given.arrays[0][0])
        self._script.knows = True
        self._sim.watcher.took(self._script, self._name, self.at)
        self._sim.mark("let in")

    def _epoch(self, epoch: int) -> None:
        script = self._script
        while self.at.step < STEPS:
            if not self._train(epoch):
                break
            if self.stop and self.at.step != STEPS:
                self._tell_stop(epoch)
                break
        if script.plan.validates:
            script._evaluate(f"{self._name} epoch {epoch}: validation")
        if script.plan.nested:
            script.evaluate(f"{self._name} epoch {epoch}: callback")
        stops = script.agree(f"{self._name} epoch {epoch}: stop?", b"\1" if self.stop else b"\0")
        self.stop = b"\1" in stops
        self.at.epoch, self.at.step = epoch + 1, 0

    def _train(self, epoch: int) -> bool:
        at, script = self.at, self._script
        if self._run.me in self._leavers:
            self._run.leave()
        task = Task(script, self._name, at, partial(self._note, False))
        what = f"{self._name} epoch {epoch} step {at.step}"
        exchanged = self._reduction.step(what, task, keeper=self, admit=self._newcomers, leavers=self._leavers)
        assert exchanged is not None
        self._newcomers = newcomers(exchanged.notes)
        self._leavers = leavers(exchanged.shared.members, exchanged.notes)
        if stopped(exchanged.notes):
            self.stop = True
            return False
        script.weights = updated(script.weights, int(exchanged.totals[0][0]))
        self._sim.watcher.committed(script, (self._name, epoch, at.step, script.weights), exchanged)
        at.step += 1
        at.total += 1
        if self._name == "first" and at.total == script.plan.stop_at:
            self.stop = True
        return True

    def _tell_stop(self, epoch: int) -> None:
        task = Task(self._script, self._name, self.at, partial(self._note, True))
        self._reduction.step(f"{self._name} epoch {epoch} step {self.at.step}", task, stops=True)

    def _note(self, stop: bool) -> Note:
        return Note(
            self.at.total,
            stop=stop,
            weights=self._script.weights,
            candidates=self._run.candidates(self._call),
            leaves=self._run.drains,
        )


class Task:
    """A worker's part of a step, as often as it is asked for."""

    def __init__(self, script: Script, name: str, at: Position, note: Callable[[], Note]) -> None:
        self._script, self._name, self._at = script, name, at
        self.note = note

    def take(self, split: Callable[[int], Sequence[range]], group: AbstractGroup) -> int | None:
        return BATCH

    def compute(self, piece: int, low: int, high: int) -> Sequence[np.ndarray[Any, Any]]:
        self._script.work(0.05)
        return self._script.arrays(self._name, self._at.epoch, self._at.step, piece)


# The coordinator and the launcher ---------------------------------------------------------------------


class Coordinator(Process):
    """The shell around the real membership. What it writes down outlives it."""

    def __init__(self, sim: Simulation, record: Record | None = None) -> None:
        super().__init__(sim.world, COORDINATOR, on_exit=lambda code: sim.coordinator_died())
        self._sim = sim
        me, now = Member(COORDINATOR, "coordinator", 99, "here", ""), sim.world.time
        self.membership = (
            Membership.restored(record, sim.config, me, now) if record else Membership(sim.config, me, now)
        )
        self.dies_telling = False
        self._links: dict[int, End] = {}
        self._count = 0
        sim.world.at(now + TICK, self.tick)

    def accept(self, process: Process) -> End:
        mine, theirs = self.world.connected(self, process)
        self._count += 1
        link = self._count
        self._links[link] = mine
        mine.on_message = lambda message: self._hear(link, message)
        return theirs

    def tick(self) -> None:
        if not self.alive:
            return
        suspects = self.membership.suspects(self.world.time)
        evidence = {
            suspect.id: Evidence("T" if self.world.processes[suspect.id].paused else "S", 0.0)
            for suspect in suspects
            if self.world.processes[suspect.id].alive
        }
        self.happen(Tick(evidence))
        if self.membership.end is None:
            self.world.at(self.world.time + TICK, self.tick)

    def _hear(self, link: int, message: Message | None) -> None:
        if link not in self._links:
            return
        if message is None:
            self._links.pop(link).close()
            self.happen(Closed(link))
            return
        self._sim.heard(mine.peer if (mine := self._links.get(link)) else "", message)
        self.happen(Said(link, message))
        repeatable = isinstance(message, Beat | Ready | Admit | Decline | Done | Finished)
        if repeatable and self.world.random.random() < self._sim.plan.repeats:
            self.world.soon(lambda: self.happen(Said(link, message)))

    def happen(self, event: Event) -> None:
        if not self.alive:
            return
        decisions = self.membership.handle(event, self.world.time)
        self._sim.watcher.decided(event, decisions)
        if any(isinstance(decision, Tell) for decision in decisions):
            self._sim.record = self.membership.record()
        for decision in decisions:
            self._perform(decision)

    def _perform(self, decision: Decision) -> None:
        match decision:
            case _ if not self.alive:
                pass
            case Tell(links, ViewChange() as message) if self.dies_telling and len(links) > 1:
                self._post(links[: self.world.random.randrange(len(links))], message)
                self.kill(-9)
            case Tell(links, message):
                self._post(links, message)
                if isinstance(message, ViewChange):
                    self._sim.mark(f"view {message.view.number}")
            case HangUp(link):
                if link in self._links:
                    self._links.pop(link).close()
            case Fence(member) if self._sim.plan.fences_kill:
                self.world.processes[member.id].kill(-9)
            case Over():
                self._sim.over_at = self.world.time
                self.world.at(self.world.time + STRAGGLERS, lambda: None)
            case Want(workers):
                self._sim.start_more(workers)
            case Report() | Fence():
                pass

    def _post(self, links: Sequence[int], message: Message) -> None:
        for link in links:
            if link in self._links:
                self._links[link].post(message)


class Simulation:
    """One plan, played."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed, late=plan.late, lost_beats=plan.lost_beats)
        self.config = RunConfig(
            "sim",
            plan.workers,
            1,
            "jax",
            "train.py",
            least=plan.least,
            pieces=plan.pieces,
            transport="tcp",
            deadlines=msgspec.structs.replace(DEADLINES, stall=plan.stall),
        )
        self.over_at: float | None = None
        self.record: Record | None = None  # what the coordinator has written down
        self.coordinator = Coordinator(self)
        self.watcher = Watcher(self)
        self.admitter = ""  # who said Admit last
        self.scripts: dict[str, Script] = {}
        self.harmed: set[str] = set()
        self.most = plan.workers
        self.fired: list[str] = []
        self._places: dict[str, int] = {}
        self._exits: dict[str, int | None] = {}  # of all workers; None: it lives
        self._restarts: dict[int, int] = {}
        self._waiting = [fault for fault in plan.faults if fault.mark != "start"]
        for number in range(plan.workers):
            self._start(number, self.world.random.random() * 0.5, first=True)
        for fault in plan.faults:
            if fault.mark == "start":
                self.world.at(fault.delay, partial(self._fire, fault))
        self.world.at(4.0, self._rescue)

    @property
    def membership(self) -> Membership:
        """Of the newest coordinator, even if it has just died."""
        return self.coordinator.membership

    @property
    def view(self) -> View | None:
        return self.membership.view

    def play(self, limit: float) -> Simulation:
        with simulated(self.world):
            try:
                ended = self.world.run(self._is_over, limit)
                self.watcher.at_the_end(ended)
            finally:
                self.world.end_all()
        return self

    def mark(self, name: str) -> None:
        """Something has happened that faults may wait for."""
        if self._waiting:
            due = [fault for fault in self._waiting if fault.mark == name]
            for fault in due:
                self._waiting.remove(fault)
                self.world.at(self.world.time + fault.delay, partial(self._fire, fault))

    def heard(self, by: str, message: Message) -> None:
        match message:
            case Admit():
                self.admitter = by
                self.mark("admit")
            case Ready():
                self.mark("ready")
            case Done():
                self.mark("done")

    def _is_over(self) -> bool:
        """Everyone has ended by itself; those who could not are ended."""
        if self.over_at is None:
            return False
        workers = [self.world.processes[name] for name in self._places]
        if self.world.time >= self.over_at + STRAGGLERS:
            for process in workers:
                if process.alive:
                    self.watcher.stayed(process)
                    process.kill(-9)
        return not any(process.alive for process in workers)

    def coordinator_died(self) -> None:
        self.watcher.lost()  # what it knew
        if self.over_at is None:
            self.world.at(self.world.time + self.world.random.uniform(0.05, 0.8), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        """As launch/local.py does: another one, which is told who lives and who does not."""
        self.coordinator = Coordinator(self, self.record)
        for name, code in self._exits.items():
            self.coordinator.happen(Started(name))
            if code is not None:
                self.coordinator.happen(Exited(name, code))

    # Starting workers -------------------------------------------------------------------------------

    def _start(self, place: int, after: float, first: bool = False) -> None:
        name = f"worker-{len(self._places)}"
        self._places[name] = place
        self._exits[name] = None
        if not first:
            self.coordinator.happen(Started(name))
        process = Process(self.world, name, on_exit=lambda code: self._see_exit(name, code))
        SimulatedListener(process)
        self.world.at(self.world.time + after, lambda: process.start(lambda: self._main(process)))

    def start_more(self, workers: int) -> None:
        for _ in range(workers):
            self._start(-1, 0.1)

    def _see_exit(self, name: str, code: int) -> None:
        self.world.at(self.world.time + self.world.random.random() * 0.05, lambda: self._reap(name, code))

    def _reap(self, name: str, code: int) -> None:
        self._exits[name] = code
        self.coordinator.happen(Exited(name, code))
        place = self._places[name]
        if self.membership.end is not None or code in STATED:
            return
        if self._restarts.get(place, 0) >= self.plan.restarts:
            return
        self._restarts[place] = self._restarts.get(place, 0) + 1
        self._start(place, self.world.random.uniform(0.1, 1.0))

    def _rescue(self) -> None:
        """Somebody adds a worker to a run that waits for one."""
        if self.membership.end is None:
            self.world.at(self.world.time + 4.0, self._rescue)
            if self.view is not None and not self.view.enough:
                alive = [name for name in self._places if self.world.processes[name].alive]
                if len(alive) < self.plan.least:
                    self._start(-1, 0.1)

    def _main(self, process: Process) -> None:
        """As launch/worker.py does."""
        code = 1
        try:
            address = f"unix:{process.name}"
            number = int(process.name.rpartition("-")[2])
            me = Member(process.name, "worker", 100 + number, "here", address)
            find = lambda deadline: COORDINATOR  # noqa: E731
            seat = Seat.join(COORDINATOR, None, me, IDENTITY, self.config.deadlines, find=find)  # type: ignore[arg-type]
            run = Session(process.name, self.config, seat, process.listener, "key")  # type: ignore[arg-type]
            try:
                code = self._run_script(process, run)
                run.close(ok=code == 0)
            except GreenletExit:
                raise  # killed: nothing is closed in good order
            except BaseException:
                run.close(ok=False)
                raise
        except CutOff:
            code = OUTSIDE
        except RunEnded:
            code = ENDED
        except WireError:
            code = 1
        if process.alive:
            process.exit(code)

    def _run_script(self, process: Process, run: Session) -> int:
        script = Script(self, process, run)
        self.scripts[process.name] = script
        try:
            script.execute()
        except Wrong as wrong:
            self.watcher.wrong = wrong
            raise
        except Exception as error:
            self.watcher.raised(process.name, error)
            assert run.seat is not None
            run.seat.fail(error, repr(error))
            return 1
        self.watcher.finished(script)
        return 0

    # Faults -----------------------------------------------------------------------------------------

    def _resolve(self, who: int | str) -> Process | None:
        alive = [name for name in self._places if self.world.processes[name].alive]
        names = [member.id for member in self.view.workers] if self.view else alive
        match who:
            case int():
                name = f"worker-{who}"
            case "chief":
                name = names[0]
            case "last":
                name = names[-1]
            case "admitter":
                name = self.admitter
            case _:
                name = alive[-1] if alive else names[-1]
        process = self.world.processes.get(name)
        return process if process is not None and process.alive else None

    def _fire(self, fault: Fault) -> None:
        if fault.kind == "standby":
            if self.membership.end is None and self.view is not None and len(self._places) < 12:
                self._start(-1, 0.1)
            return
        if fault.kind in ("coordinator", "torn"):
            if self.membership.end is None and self.coordinator.alive:
                self.fired.append(fault.kind)
                self.coordinator.dies_telling = fault.kind == "torn"
                if fault.kind == "coordinator":
                    self.coordinator.kill(-9)
            return
        if fault.kind == "scale" and self.coordinator.alive:
            self.fired.append(fault.kind)
            self.most = max(self.most, fault.workers)
            self.harmed |= set(self._places)  # any of them may be asked to leave
            self.coordinator.happen(Said(NOBODY, ScaleRequest(fault.workers)))
        process = self._resolve(fault.who)
        if process is None or self.membership.end is not None or fault.kind == "scale":
            return
        self.fired.append(fault.kind)
        match fault.kind:
            case "drain":
                self.harmed.add(process.name)
                self.coordinator.happen(Said(NOBODY, DrainRequest(process.name)))
            case "kill":
                self.harmed.add(process.name)
                process.kill(-9)
            case "pause":
                if fault.seconds > DEADLINES.silence * 0.7:
                    self.harmed.add(process.name)
                process.pause(fault.seconds)
            case "cut":
                other = self._resolve(fault.other)
                if other is not None and other is not process:
                    self.harmed |= {process.name, other.name}
                    self._cut(process.name, other.name, fault.seconds)
            case "away":
                if fault.seconds > DEADLINES.silence * 0.7:
                    self.harmed.add(process.name)
                self._cut(process.name, COORDINATOR, fault.seconds)
            case "fail":
                if process.name in self.scripts:
                    self.harmed.add(process.name)
                    self.scripts[process.name].fails = fault.error
            case "ghost":
                self._haunt(process)
            case kind:
                raise ValueError(kind)

    def _cut(self, one: str, other: str, seconds: float) -> None:
        self.world.cut_off(one, other)
        self.world.at(self.world.time + seconds, lambda: self.world.heal(one, other))

    def _haunt(self, process: Process) -> None:
        """A message of an older view comes once more, on each connection of the newest."""
        script = self.scripts.get(process.name)
        if script is None or script.run.company._group is None:
            return
        old = script.run.company.view - 1
        for end in process.ends:
            if end.peer in self.scripts:
                words = (Published(old, 1, "a ghost", b""), Reduced(old, 1))
                self.world.carry(end, (self.world.random.choice(words), []))


# What must be true ------------------------------------------------------------------------------------


@dataclass
class Watcher:
    """The promises, checked after every event."""

    sim: Simulation
    views: list[View] = field(default_factory=list)
    overs: list[RunEnd] = field(default_factory=list)
    wrong: Wrong | None = None
    hopeless: bool = False  # at some moment nobody was left who knew where the run stood
    errors: dict[str, Exception] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    newcomers: int = 0
    passed: int = 0
    _committed: list[tuple[str, int, int, int]] = field(default_factory=list)
    _told: dict[str, tuple[str, object]] = field(default_factory=dict)
    _by: dict[str, set[str]] = field(default_factory=dict)
    _lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = expected(self.sim.plan)

    def check(self, promise: bool, text: str) -> None:
        if not promise:
            self.wrong = self.wrong or Wrong(text)
            raise self.wrong

    # The coordinator.

    def decided(self, event: Event, decisions: list[Decision]) -> None:
        if self.wrong is not None:
            raise self.wrong
        for decision in decisions:
            match decision:
                case Tell(_, ViewChange(view)) if self.views and view == self.views[-1]:
                    self.check(isinstance(event, Said) and isinstance(event.message, Join), "a view is told again")
                case Tell(_, ViewChange(view)):
                    self.check(view.number == len(self.views) + 1, f"view {view.number} after view {len(self.views)}")
                    self.check(not self.overs, "a view after the end")
                    self.check(view.enough == (len(view.workers) >= self.sim.plan.least), "enough workers?")
                    self.check(len(view.workers) <= self.sim.most, f"too many workers: {view}")
                    for worker in view.workers:
                        self.check(self.counts(worker.id), f"{worker.id} is lost, but in view {view.number}")
                    self.views.append(view)
                case Over(end):
                    self.check(not self.overs, "a run is over once")
                    self.overs.append(end)
        self.check(self.sim.view == (self.views[-1] if self.views else None), "a view that nobody was told of")
        if self.views and not self.hopeless and (not self.overs or any(isinstance(d, Over) for d in decisions)):
            self.hopeless = not any(self.knows(worker.id) for worker in self.views[-1].workers)

    def counts(self, id: str) -> bool:
        return self.sim.membership._seats[id].counts

    def knows(self, id: str) -> bool:
        """Whether it could still tell others where the run stands."""
        script = self.sim.scripts.get(id)
        return self.counts(id) and self.sim.world.processes[id].alive and (script is None or script.knows)

    # What workers have in common.

    def same(self, script: Script, what: str, value: object) -> None:
        """All who have this have the same; unless those who had something else took it with them."""
        me = script.process.name
        if not self.counts(me):
            return  # what one that was lost still does, all by itself
        first = self._told.get(what)
        if first is None or first[1] == value:
            self._told[what] = (me, value)
            self._by.setdefault(what, set()).add(me)
            return
        others = [other for other in self._by[what] if self.counts(other) and self.sim.world.processes[other].alive]
        self.check(not others, f"{what}: {me} has {value}, {', '.join(others)} {first[1]}")
        self._told[what], self._by[what] = (me, value), {me}

    def told(self, script: Script, what: str, members: tuple[str, ...], values: list[bytes]) -> None:
        self.check(len(members) == len(values), f"{what}: {len(values)} values of {members}")
        self.same(script, what, (members, tuple(values)))
        if "digests" in what:
            self.check(set(values) == {str(script.weights).encode()}, f"{what}: {values}")

    def counted(self, script: Script, what: str, exchanged: Exchanged) -> None:
        """Every piece once, by the member of that view that held it."""
        _, counts, who = exchanged.totals
        shared = exchanged.shared
        self.check(list(counts) == [1] * self.sim.plan.pieces, f"{what}: pieces were counted {list(counts)} times")
        for member, (first, stop) in zip(shared.members, shared.held, strict=True):
            number = 1 + int(member.rpartition("-")[2])
            self.check(list(who[first:stop]) == [number] * (stop - first), f"{what}: {list(who)} for {shared}")
        views = [tuple(worker.id for worker in view.workers) for view in self.views]
        self.check(shared.members in views, f"{what}: {shared.members} were never a view")
        self.same(script, what, (shared.members, tuple(who)))

    def committed(self, script: Script, step: tuple[str, int, int, int], exchanged: Exchanged) -> None:
        self.counted(script, f"step {step[:3]}", exchanged)
        members = exchanged.shared.members
        self.check(len(members) >= self.sim.plan.least, f"step {step[:3]}: {members} are not enough")
        if not self._committed or self._committed[-1] != step:
            if step not in self._committed:
                count = len(self._committed)
                due = self.expected[count] if count < len(self.expected) else None
                self.check(step == due, f"{script.process.name} committed {step}; expected was {due}")
                self._committed.append(step)
                self.sim.mark(f"step {count}")
            else:
                behind = len(self._committed) - 1 - self._committed.index(step)
                late = behind > 1 and self.counts(script.process.name)
                self.check(not late, f"{script.process.name} committed {step} {behind} steps after others")

    def gave(self, script: Script, at: Position) -> None:
        self.same(script, f"state {at.fit} {at.epoch} {at.step}", (msgspec.structs.astuple(at), script.weights))

    def took(self, script: Script, name: str, at: Position) -> None:
        self.newcomers += 1
        me = script.process.name
        self.check(at.fit == name, f"{me} is at the fit {name} and was told about {at.fit}")
        self.same(script, f"state {at.fit} {at.epoch} {at.step}", (msgspec.structs.astuple(at), script.weights))
        before = sum(fit == "first" for fit, *_ in self.expected) if name == "second" else 0
        weights = self.expected[before + at.total - 1][3] if before + at.total else FIRST_WEIGHTS
        self.check(script.weights == weights, f"{me} was told other weights than those at {at}")

    def returned(self, script: Script, what: str, value: object) -> None:
        """Calls return the same to all, also to those who were not there."""
        self.same(script, f"{what} returned", value)
        if what in EPOCHS:
            last = next(weights for fit, _, _, weights in reversed(self.expected) if fit == what)
            self.check(value == last, f"{what} returned {value} to {script.process.name}; expected was {last}")

    def finished(self, script: Script) -> None:
        if script.knows:
            self.check(script.weights == self.expected[-1][3], f"{script.process.name} ends with other weights")
        self.done.append(script.process.name)

    def raised(self, id: str, error: Exception) -> None:
        self.errors[id] = error

    def stayed(self, process: Process) -> None:
        held = process.paused or self.sim.world.are_cut_off(process.name, COORDINATOR)
        self.check(held, f"{process.name} has not ended after the run")

    # The end.

    def at_the_end(self, ended: bool) -> None:
        if self.wrong is not None:
            raise self.wrong
        self.check(ended, f"the run hangs: {self.whereabouts()}")
        self.check(len(self.overs) == 1, f"the run is over {len(self.overs)} times")
        end = self.overs[0]
        took = self.sim.over_at or 0.0
        self.check(took <= due(self.sim.plan) or self.sim.config.deadlines.stall > 12.0, f"it took {took:.1f} s")
        if end.ok:
            self.check(self._committed == self.expected, f"{len(self._committed)} steps of {len(self.expected)}")
            self.check(bool(self.done), "nobody finished")
        else:
            # Who is cut off from one that finished can't be told from one whose script makes another call.
            deserted = "finished its script" in end.reason and "cut" in self.sim.fired
            nobody = not self.views or self.hopeless  # all were lost before they had begun; or since
            self.check(nobody or self.failed_twice() or deserted, f"the run ended: {end.reason}")
        innocent = {id for id, why in self.lost().items() if id not in self.sim.harmed and not self.excused(id, why)}
        self.check(not innocent, f"{innocent} lost, but nothing happened to them: {self.why()}")

    def excused(self, id: str, why: str) -> bool:
        """Whether it was lost by what happened to others, and rightly so."""
        error = str(self.errors.get(id))
        alone = "nobody knows where the run stands" in error  # a newcomer, and all who could tell it were lost
        haunted = "ghost" in self.sim.fired and "instead of its arrays" in why  # a refusal came when none was expected
        deserter = "finished its script at step" in why and "cut" in self.sim.fired
        return alone or haunted or deserter

    def failed_twice(self) -> bool:
        errors = [str(error) for error in self.errors.values() if isinstance(error, ValueError)]
        return len(errors) > len(set(errors)) or len(errors) > 1

    def lost(self) -> dict[str, str]:
        """Who was lost and why, as the first coordinator that found it out said it."""
        found = {id: trouble.sentence(id) for id, trouble in self.sim.membership._troubles().items()}
        self._lost = found | self._lost
        return self._lost

    def why(self) -> str:
        return "; ".join(self.lost().values())

    def whereabouts(self) -> str:
        seats = self.sim.membership._seats.items()
        where = ", ".join(f"{id} {seat.beat.doing} at {seat.beat.step}" for id, seat in seats if seat.counts)
        return (
            f"view {self.views[-1] if self.views else None}; {where}; lost: {self.why()}; {len(self._committed)} steps"
        )


# Playing ----------------------------------------------------------------------------------------------

LIMIT = 300.0


def due(plan: Plan) -> float:
    """Until when it must be over. Only those who can't reach each other may take long."""
    if any(fault.kind in ("cut", "away", "ghost") for fault in plan.faults):
        return LIMIT
    return 20.0 + 6.0 * len(plan.faults)


def play(plan: Plan, limit: float = LIMIT) -> Simulation:
    """One run. Wrong, with the smallest plan that still fails, if a promise is broken."""
    try:
        return Simulation(plan).play(limit)
    except Wrong as wrong:
        smaller, why = shrink(plan, wrong, limit)
        faults = "".join(f"\n    {fault}" for fault in smaller.faults)
        raise Wrong(f"seed {plan.seed}: {why}\n  {dataclasses.replace(smaller, faults=())}{faults}") from wrong


def shrink(plan: Plan, wrong: Wrong, limit: float = LIMIT) -> tuple[Plan, Wrong]:
    """Drops faults, one by one, while it still fails; then makes the rest as plain as it can be."""

    def fails(smaller: Plan) -> Wrong | None:
        try:
            Simulation(smaller).play(limit)
        except Wrong as error:
            return error
        return None

    shrunk = True
    while shrunk:
        shrunk = False
        candidates = [
            dataclasses.replace(plan, faults=(*plan.faults[:i], *plan.faults[i + 1 :])) for i in range(len(plan.faults))
        ]
        plainer = Plan(0)
        candidates += [
            dataclasses.replace(plan, **{name: getattr(plainer, name)})
            for name in ("late", "lost_beats", "repeats", "nested", "validates", "stop_at")
            if getattr(plan, name) != getattr(plainer, name)
        ]
        for candidate in candidates:
            if (error := fails(candidate)) is not None:
                plan, wrong, shrunk = candidate, error, True
                break
    return plan, wrong
