"""An elastic run under one seed: the real coordinator's decisions, the real code of every worker, no process.

What is real: Membership and its record; CoordinatorLink with its thread, Session, Calls, SynchronousTraining and its
loop over epochs, the data agreement, WorkerGroup, resync, form, Messenger, Exchanges, PeerGroup, the exchange over
sockets, Reduction and the notes. With servers: Director, AsynchronousTraining or ServedUpdates, FitStore, Client with
its thread, Server, Links, Saver and what servers do for it. What is not: sockets, processes, time (machine.py), the
shells of the coordinator and the launcher, the model (toy.py, toy_server.py), files, and the script with what the hook
does for it (script.py).

`play(plan)` runs one plan and checks it; a failing one is made smaller by `shrink` before it is told.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from greenlet import GreenletExit

from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.coordinator_log import LogPlan
from shoal.cluster.events import (
    Decision,
    Event,
    Evidence,
    Exited,
    Fence,
    HangUp,
    KeepResult,
    LinkClosed,
    ReportTrouble,
    RunOver,
    Said,
    Started,
    Tell,
    TellResults,
    Tick,
    WantWorkers,
)
from shoal.cluster.identity import Identity
from shoal.cluster.log_entries import entries
from shoal.cluster.membership import Membership
from shoal.cluster.membership_record import Recalled, recall
from shoal.cluster.messages import (
    Admit,
    Beat,
    Caught,
    Decline,
    Done,
    DrainRequest,
    Finished,
    Join,
    Ready,
    ScaleRequest,
    ServiceMessage,
    ViewChange,
)
from shoal.cluster.messages import End as RunEnd
from shoal.cluster.view import Member, View, role_of
from shoal.collectives.group import Gathered
from shoal.collectives.messages import Reduced, SlotsPublished
from shoal.config import RunConfig, Saving, Servers
from shoal.errors import CutOff, RunEnded, StageLost, WireError
from shoal.session import Session
from shoal.store.decisions.director_messages import FROM_DIRECTOR, TO_DIRECTOR
from shoal.store.decisions.placement import Placement
from shoal.strategies.allreduce import Exchanged
from shoal.training.logs import Logs
from shoal.training.position import Position
from shoal.wire.messages import Message

from .local_toy import reference_of
from .machine import COORDINATOR, End, Process, SimulatedListener, World, simulated
from .plan import DEADLINES, Fault, Plan, random_plan
from .script import Script
from .shard_history import OBSERVERS, ObservedDirector, ShardHistory
from .toy import EPOCHS, Step
from .toy_writer import WRITERS, Checkpoints
from .wrong import Wrong

__all__ = ["DEADLINES", "LIMIT", "Fault", "Plan", "Simulation", "Wrong", "play", "random_plan"]

TICK = 0.1
IDENTITY = Identity("jax", "0.10", "3.15", "2.4", 1, 4, "x86_64 avx2")
OUTSIDE = 76  # the exit code of a worker without which the run went on
ENDED = 75  # the exit code of a worker whose run was over before its script was
CHECK_EVERY = 2  # steps between two comparisons of the workers' weights
STRAGGLERS = 20.0  # seconds after the end, until which everyone who can has ended
NOBODY = -1  # the link of one who asks from a terminal and does not wait for the answer
STATED = (0, ENDED, 130)  # exit codes of workers that nobody replaces
LEASE = 0.25  # seconds, with servers, after which a batch is given to somebody else
RESTART = 0.05  # seconds after which one that was lost is replaced, with servers


# The coordinator and the launcher ---------------------------------------------------------------------


class Coordinator(Process):
    """The shell around the real membership. What it writes down outlives it."""

    def __init__(self, sim: Simulation, recalled: Recalled | None = None) -> None:
        super().__init__(sim.world, COORDINATOR, on_exit=lambda code: sim.coordinator_died())
        self._sim = sim
        me, now = Member(COORDINATOR, "coordinator", 99, "here", "this one", ""), sim.world.time
        self.director: ObservedDirector | None = None
        if sim.plan.servers:
            self.director = ObservedDirector(LEASE, recalled.service if recalled else None, sim.history)
        self.membership = (
            Membership.restored(recalled.membership, sim.config, me, now, self.director, finished=tuple(sim.results))
            if recalled
            else Membership(sim.config, me, now, self.director)
        )
        self._plan = LogPlan()
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
            self.happen(LinkClosed(link))
            return
        self._sim.heard(mine.peer if (mine := self._links.get(link)) else "", message)
        self.happen(Said(link, message))
        repeatable = isinstance(message, Beat | Ready | Admit | Decline | Done | Finished | Caught)
        if repeatable and self.world.random.random() < self._sim.plan.repeats:
            self.world.soon(lambda: self.happen(Said(link, message)))

    def happen(self, event: Event) -> None:
        if not self.alive:
            return
        decisions = self.membership.handle(event, self.world.time)
        self._sim.watcher.decided(event, decisions)
        self._sim.results |= {it.call: it.result for it in decisions if isinstance(it, KeepResult)}
        if any(isinstance(decision, Tell | TellResults) for decision in decisions):
            self._write_down()
        for decision in decisions:
            self._perform(decision)

    def _write_down(self) -> None:
        write = self._plan.next(self.membership, self.world.time)
        if write is not None:
            self._sim.log = write.content if write.anew else self._sim.log + write.content
            self._plan.wrote(write)
        if self._sim.history is not None and self.director is not None:
            self._sim.history.wrote(self.director.training)
            self._sim.mark("written")

    def _perform(self, decision: Decision) -> None:
        match decision:
            case _ if not self.alive:
                pass
            case TellResults(links, calls):
                for call in calls:
                    self._post(links, Finished(call, self._sim.results[call]))
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
            case RunOver():
                self._sim.over_at = self.world.time
                self.world.at(self.world.time + STRAGGLERS, lambda: None)
            case WantWorkers(workers):
                self._sim.start_more(workers)
            case ReportTrouble() | Fence() | KeepResult():
                pass

    def _post(self, links: Sequence[int], message: Message) -> None:
        for link in links:
            if link in self._links and self.alive:  # it may die in the middle of this
                self._links[link].post(message)


class Snapshots:
    """The `SnapshotFiles` of a run, in memory."""

    def __init__(self) -> None:
        self._left: tuple[str, bytes] | None = None

    def leave(self, name: str, content: Callable[[], bytes]) -> None:
        if self._left is None or self._left[0] != name:
            self._left = (name, content())

    def find(self, name: str) -> bytes | None:
        return self._left[1] if self._left is not None and self._left[0] == name else None


class Simulation:
    """One plan, played."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        if plan.at_own_pace:
            self.world = World(
                plan.seed, 0.001, plan.late, plan.lost_beats, lateness=0.1, repeated=plan.repeated, torn=0.5
            )
        else:
            self.world = World(plan.seed, late=plan.late, lost_beats=plan.lost_beats)
        self.history: ShardHistory = ShardHistory(self) if plan.at_own_pace else None  # type: ignore[assignment]
        self.world.history, self.world.disk = self.history, Checkpoints()
        if plan.servers:
            self.world.on_sent = self._sent
        self.snapshots = Snapshots()
        self.config = RunConfig(
            "sim",
            plan.workers,
            1,
            "jax",
            "train.py",
            least=plan.least,
            pieces=plan.pieces,
            transport="tcp",
            deadlines=plan.deadlines,
            check_every=CHECK_EVERY,
            strategy="ps" if plan.servers else "allreduce",
            servers=Servers(plan.servers, plan.replicas, plan.bound) if plan.servers else None,
            saving=Saving("checkpoints", "1step", run="sim") if plan.saves else None,
        )
        self.over_at: float | None = None
        self.log = b""  # what the coordinator has written down
        self.results: dict[int, bytes] = {}
        self.told: Counter[str] = Counter()  # marks
        self._waiting = [fault for fault in plan.faults if fault.mark != "start"]
        self._awaited = {fault.mark for fault in self._waiting}
        self._away = 0.0  # seconds until there is another coordinator
        self._left = plan.restarts  # of the lost that are replaced, with servers
        self.watcher: Watcher = PacedWatcher(self) if plan.at_own_pace else Watcher(self)
        self.coordinator = Coordinator(self)
        self.admitter = ""  # who said Admit last
        self.scripts: dict[str, Script] = {}
        self.harmed: set[str] = set()
        self.most = plan.workers
        self.fired: list[str] = []
        self._places: dict[str, int] = {}
        self._hosts: dict[str, int] = {}  # of each member
        self._exits: dict[str, int | None] = {}  # of all workers; None: it lives
        self._restarts: dict[int, int] = {}
        start = 0.01 if plan.at_own_pace else 0.5
        for number in range(plan.servers):
            self._start(number, self.world.random.random() * start, first=True, role="server")
        for number in range(plan.workers):
            self._start(number, self.world.random.random() * start, first=True)
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
        with simulated(self.world, (*OBSERVERS, *WRITERS) if self.plan.servers else ()):
            try:
                ended = self.world.run(self._is_over, limit)
                self.watcher.at_the_end(ended)
            finally:
                self.world.end_all()
        return self

    def mark(self, name: str) -> None:
        """Something has happened that faults may wait for. The coordinator may die in the middle of something."""
        self.told[name] += 1
        if name in self._awaited:
            due = [fault for fault in self._waiting if (fault.mark, fault.nth) == (name, self.told[name])]
            for fault in due:
                self._waiting.remove(fault)
                if fault.kind == "coordinator" and not fault.delay and self.plan.at_own_pace:
                    self._fire(fault)
                else:
                    self.world.at(self.world.time + fault.delay, partial(self._fire, fault))

    def _sent(self, process: Process, message: Message) -> None:
        """Messages are marks, where there are servers."""
        name = type(message).__name__
        if isinstance(message, ServiceMessage):
            codec = FROM_DIRECTOR if process.name == COORDINATOR else TO_DIRECTOR
            name = type(codec.decode(message.content)).__name__
        self.mark(name)
        if f"{name} of {process.name}" in self._awaited:
            self.mark(f"{name} of {process.name}")

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
            away = self._away or self.world.random.uniform(0.05, 0.8)
            self.world.at(self.world.time + away, self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        """As launch/supervision/local_coordination.py does: another one, which is told who lives and who does not."""
        self.coordinator = Coordinator(self, recall(list(entries(self.log))))
        for name, code in self._exits.items():
            self.coordinator.happen(Started(name))
            if code is not None:
                self.coordinator.happen(Exited(name, code))

    # Starting workers -------------------------------------------------------------------------------

    def _start(
        self, place: int, after: float, first: bool = False, role: str = "worker", host: int | None = None
    ) -> None:
        number = sum(role_of(other) == role for other in self._places)
        name = f"{role}-{number}"
        self._places[name] = place
        self._hosts[name] = number % self.plan.hosts if host is None else host
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
        if self.plan.servers:
            if self._left:
                self._left -= 1
                self._start(-1, RESTART, role=role_of(name), host=self._hosts[name])
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
                alive = [name for name in self._workers() if self.world.processes[name].alive]
                if len(alive) < self.plan.least:
                    self._start(-1, 0.1)

    def _workers(self) -> list[str]:
        return [name for name in self._places if role_of(name) == "worker"]

    def _main(self, process: Process) -> None:
        """As launch/worker.py does."""
        code = 1
        try:
            address = f"unix:{process.name}"
            number = int(process.name.rpartition("-")[2])
            machine = "this one" if self.plan.hosts == 1 else f"host {self._hosts[process.name]}"
            me = Member(process.name, role_of(process.name), 100 + number, "here", machine, address)
            find = lambda deadline: COORDINATOR  # noqa: E731
            coordinator_link = CoordinatorLink.join(COORDINATOR, None, me, IDENTITY, self.config.deadlines, find=find)  # type: ignore[arg-type]
            run = Session(process.name, self.config, coordinator_link, process.listener, "key")  # type: ignore[arg-type]
            run.snapshots = self.snapshots  # type: ignore[assignment]
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
            assert run.coordinator_link is not None
            run.coordinator_link.fail(error, repr(error))
            return 1
        self.watcher.finished(script)
        return 0

    # Faults -----------------------------------------------------------------------------------------

    def _resolve(self, who: int | str, shard: int = 0) -> Process | None:
        alive = [name for name in self._workers() if self.world.processes[name].alive]
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
            case "primary" | "backup" | "newcomer":
                name = self._holder(who, shard)
            case str() if who in self.world.processes:
                name = who
            case _:
                name = alive[-1] if alive else names[-1]
        process = self.world.processes.get(name)
        return process if process is not None and process.alive else None

    def _holder(self, who: str, shard: int) -> str:
        """A server that has this part in a shard."""
        placement = self.placement
        if placement is None:
            return f"server-{shard % self.plan.servers}"
        view = placement.views[shard % len(placement.views)]
        held = {"primary": (view.primary,), "backup": view.backups, "newcomer": view.newcomers}[who]
        return next((id for id in held if id is not None), "")

    @property
    def placement(self) -> Placement | None:
        """The newest, as the coordinator knows it that is there, or was last."""
        training = self.coordinator.director.training if self.coordinator.director is not None else None
        return training.placement if training is not None else None

    def _may_lose(self, name: str) -> bool:
        """At their own pace: something must be left to go on with: a worker, and one of every shard."""
        if not self.plan.at_own_pace:
            return True
        here = self._here() - {name}
        if self.view is None or not any(worker.id in here for worker in self.view.workers):
            return False
        placement = self.placement if self.coordinator.alive else self._written_placement()
        if self.plan.setbacks or placement is None:
            return self._left > 0 or any(role_of(id) == "server" for id in here)
        return _covers(placement, here)

    def _lose_host(self, host: int) -> None:
        """With everybody on it, when copies have had time to be where they belong: nothing may be lost then."""
        doomed = {id for id in self._here() if self._hosts[id] == host}
        here, placement = self._here() - doomed, self.placement
        if self.view is None or placement is None or not self.coordinator.alive:
            return
        has_worker = any(worker.id in here for worker in self.view.workers)
        has_server = any(id in here for id in placement.servers)
        copied = all(len(view.backups) + 1 >= placement.replicas and not view.newcomers for view in placement.views)
        if has_worker and has_server and copied and placement.is_settled:
            self.fired.append("host")
            for name in doomed:
                self.harmed.add(name)
                self.world.processes[name].kill(-9)

    def _here(self) -> set[str]:
        """Who lives, and is not stopped for so long that it is given up."""
        processes = self.world.processes
        return {id for id in self._places if processes[id].alive and not (processes[id].paused and id in self.harmed)}

    def _may_crash(self) -> bool:
        """The next one must not believe, of a shard, that all who have it are lost."""
        if not self.plan.at_own_pace or self.plan.setbacks or self.coordinator.director is None:
            return True
        placement = self._written_placement()
        return placement is None or _covers(placement, self._here())

    def _written_placement(self) -> Placement | None:
        """As the next coordinator is going to know it."""
        recalled = recall(list(entries(self.log)))
        training = ObservedDirector(LEASE, recalled.service, None).training if recalled is not None else None
        return training.placement if training is not None else None

    def _fire(self, fault: Fault) -> None:
        if fault.kind == "standby":
            if self.membership.end is None and self.view is not None and len(self._places) < 12:
                self.fired.append(fault.kind)
                self._start(-1, 0.1, role="server" if fault.who == "server" else "worker")
            return
        if fault.kind in ("coordinator", "torn"):
            if self.membership.end is None and self.coordinator.alive and self._may_crash():
                self.fired.append(fault.kind)
                self._away = fault.seconds if self.plan.at_own_pace else 0.0
                self.coordinator.dies_telling = fault.kind == "torn"
                if fault.kind == "coordinator":
                    self.coordinator.kill(-9)
            return
        if fault.kind == "scale" and self.coordinator.alive:
            self.fired.append(fault.kind)
            self.most = max(self.most, fault.workers)
            self.harmed |= set(self._places)  # any of them may be asked to leave
            self.coordinator.happen(Said(NOBODY, ScaleRequest(fault.workers)))
        process = self._resolve(fault.who, fault.shard)
        if process is None or self.membership.end is not None or fault.kind == "scale":
            return
        if fault.kind == "host":
            self._lose_host(self._hosts[process.name])
            return
        silence = self.config.deadlines.silence
        is_loss = fault.kind == "kill" or (fault.kind == "pause" and fault.seconds > silence * 0.7)
        if is_loss and not self._may_lose(process.name):
            return
        if fault.kind in ("flip", "halt", "save") and not self._is_there(fault.kind, process.name):
            return
        self.fired.append(fault.kind)
        match fault.kind:
            case "break":
                other = self._resolve(fault.other, fault.shard)
                if other is not None:
                    self.world.break_off(process.name, other.name, min(fault.seconds, 0.3))
            case "flip":
                shard = fault.shard % self.plan.shards
                self.history.flip(shard, self.history.servers[process.name].tensors(shard))
            case "halt":
                self.scripts[process.name].halts = True
            case "save":
                self.scripts[process.name].saves = True
            case "drain":
                self.harmed.add(process.name)
                self.coordinator.happen(Said(NOBODY, DrainRequest(process.name)))
            case "kill":
                self.harmed.add(process.name)
                process.kill(-9)
            case "pause":
                if fault.seconds > silence * 0.7:
                    self.harmed.add(process.name)
                process.pause(fault.seconds)
            case "dawdle":
                if process.name in self.scripts:
                    if fault.seconds > self.config.deadlines.stall * 0.7:
                        self.harmed.add(process.name)
                    self.scripts[process.name].dawdles = fault.seconds
            case "cut":
                other = self._resolve(fault.other)
                if other is not None and other is not process:
                    self.harmed |= {process.name, other.name}
                    self._cut(process.name, other.name, fault.seconds)
            case "away":
                if fault.seconds > silence * 0.7:
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

    def _is_there(self, kind: str, name: str) -> bool:
        """Whether this member has come to where that can happen to it."""
        return name in self.history.servers if kind == "flip" else name in self.scripts

    def _cut(self, one: str, other: str, seconds: float) -> None:
        self.world.cut_off(one, other)
        self.world.at(self.world.time + seconds, lambda: self.world.heal(one, other))

    def _haunt(self, process: Process) -> None:
        """A message of an older view comes once more, on each connection of the newest."""
        script = self.scripts.get(process.name)
        if script is None or script.run.worker_group._group is None:
            return
        old = script.run.worker_group.view - 1
        for end in process.ends:
            if end.peer in self.scripts:
                words = (SlotsPublished(old, 1, "a ghost", b""), Reduced(old, 1))
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
    caught: list[str] = field(default_factory=list)
    newcomers: int = 0
    passed: int = 0
    _seeds: dict[str, int] = field(default_factory=dict)  # of each fit, as agreed
    _committed: list[Step] = field(default_factory=list)
    _companies: set[tuple[str, ...]] = field(default_factory=set)  # the workers of each view
    _told: dict[str, tuple[str, object]] = field(default_factory=dict)
    _by: dict[str, set[str]] = field(default_factory=dict)
    _lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sim.plan.at_own_pace:
            self.reference = reference_of(self.sim.plan)

    @property
    def expected(self) -> list[Step]:
        """All steps in their order, with the weights after each, of the fits that have begun."""
        return self.reference.steps

    def check(self, promise: bool, text: str) -> None:
        """What is checked often asks first: words are dear."""
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
                    self._companies.add(tuple(worker.id for worker in view.workers))
                case RunOver(end):
                    self.check(not self.overs, "a run is over once")
                    self.overs.append(end)
        self.check(self.sim.view == (self.views[-1] if self.views else None), "a view that nobody was told of")
        if self.views and not self.hopeless and (not self.overs or any(isinstance(d, RunOver) for d in decisions)):
            self.hopeless = not any(self.knows(worker.id) for worker in self.views[-1].workers)

    def counts(self, id: str) -> bool:
        return self.sim.membership._roster.members[id].counts

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

    def agreed_on_seed(self, script: Script, name: str, told: Gathered) -> None:
        """What the samples' order, and so all that follows, depends on: the chief's word."""
        what = f"{name}: the seed"
        self.check(len(told.members) == len(told.values), f"{what}: {told}")
        if not self.counts(script.process.name):
            return
        self.same(script, what, (told.members, tuple(told.values)))
        if self._seeds.get(name) != int(told.chiefs):
            anew = name in self._seeds  # those who had heard another word are gone
            self._seeds[name] = int(told.chiefs)
            if anew:
                self.reference = reference_of(self.sim.plan)
            for fit in self._seeds if anew else [name]:
                self.reference.fit(fit, self._seeds[fit])

    def counted(self, script: Script, what: str, exchanged: Exchanged) -> None:
        """Every piece once, by the member of that view that held it."""
        counts, who = (total.tolist() for total in exchanged.totals[1:3])
        shared = exchanged.shared
        if counts != [1] * self.sim.plan.pieces:
            self.check(False, f"{what}: pieces were counted {counts} times")
        for member, (first, stop) in zip(shared.members, shared.held, strict=True):
            number = 1 + int(member.rpartition("-")[2])
            if who[first:stop] != [number] * (stop - first):
                self.check(False, f"{what}: {who} for {shared}")
        self.check(shared.members in self._companies, f"{what}: {shared.members} were never a view")
        self.same(script, what, (shared.members, tuple(who)))

    def committed(self, script: Script, step: Step, exchanged: Exchanged, logs: Logs) -> None:
        self.committed_by(script, step, exchanged.shared.members, logs)

    def lost_a_stage(self, script: Script) -> None:
        """That is right if nobody who counts has it any more; then the run can't go on."""
        others = [one for id, one in self.sim.scripts.items() if self.knows(id)]
        for stage in range(self.sim.plan.stages):
            if not any(one.holds_stage(stage) for one in others):
                self.hopeless = True
        counts = self.counts(script.process.name)
        self.check(self.hopeless or not counts, f"{script.process.name} says that a stage is lost, and none is")

    def committed_by(self, script: Script, step: Step, members: tuple[str, ...], logs: Logs) -> None:
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
                late = behind > max(1, 2 * self.sim.plan.every - 1) and self.counts(script.process.name)
                self.check(not late, f"{script.process.name} committed {step} {behind} steps after others")
        self.logged(script, step[:3], logs)

    def logged(self, script: Script, step: tuple[str, int, int], logs: Logs) -> None:
        due = self.reference.logs.get(step)
        if logs != due:
            self.check(False, f"{script.process.name} logs {logs} after {step}; expected was {due}")

    def gave(self, script: Script, name: str, at: Position) -> None:
        self.same(script, f"state {name} {at.epoch} {at.step}", (msgspec.msgpack.encode(at), script.weights))

    def took(self, script: Script, name: str, at: Position) -> None:
        self.newcomers += 1
        me = script.process.name
        self.gave(script, name, at)
        before = sum(fit == "first" for fit, *_ in self.expected) if name == "second" else 0
        weights = self.expected[before + at.total - 1][3] if before + at.total else reference_of(self.sim.plan).weights
        if at.step == 0:
            weights = self.reference.at_start.get((name, at.epoch), weights)
        self.check(script.weights == weights, f"{me} was told other weights than those at {at}")

    def returned(self, script: Script, what: str, value: object) -> None:
        """Calls return the same to all, also to those who were not there."""
        self.same(script, f"{what} returned", value)
        if what in EPOCHS:
            due = self.reference.returned.get(what)
            self.check(value == due, f"{what} returned {value} to {script.process.name}; expected was {due}")

    def finished(self, script: Script) -> None:
        if script.run.is_server:
            return
        if script.knows:
            weights = self.reference.weights if self.sim.plan.streaming else self.expected[-1][3]
            self.check(script.weights == weights, f"{script.process.name} ends with other weights")
            done = (script.run.trained, script.run.seen)
            due = (len(self.expected), self.reference.samples)
            self.check(done == due, f"{script.process.name} counted {done} steps and samples; expected were {due}")
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
            self.at_good_end()
            self.check(bool(self.done), "nobody finished")
        else:
            # Who is cut off from one that finished can't be told from one whose script makes another call.
            deserted = "finished its script" in end.reason and "cut" in self.sim.fired
            nobody = not self.views or self.hopeless  # all were lost before they had begun; or since
            self.check(nobody or self.failed_twice() or deserted, f"the run ended: {end.reason}")
        innocent = {id for id, why in self.lost().items() if id not in self.sim.harmed and not self.excused(id, why)}
        self.check(not innocent, f"{innocent} lost, but nothing happened to them: {self.why()}")

    def at_good_end(self) -> None:
        self.check(self._seeds.keys() == EPOCHS.keys(), f"no more fits than {list(self._seeds)}")
        self.check(self._committed == self.expected, f"{len(self._committed)} steps of {len(self.expected)}")

    def excused(self, id: str, why: str) -> bool:
        """Whether it was lost by what happened to others, and rightly so."""
        error = str(self.errors.get(id))
        alone = "nobody knows where the run stands" in error  # a newcomer, and all who could tell it were lost
        haunted = "ghost" in self.sim.fired and "instead of its arrays" in why  # a refusal came when none was expected
        deserter = "finished its script at step" in why and "cut" in self.sim.fired
        stageless = isinstance(self.errors.get(id), StageLost) and self.hopeless
        return alone or haunted or deserter or stageless

    def failed_twice(self) -> bool:
        errors = [str(error) for error in self.errors.values() if isinstance(error, ValueError)]
        return len(errors) > len(set(errors)) or len(errors) > 1

    def lost(self) -> dict[str, str]:
        """Who was lost and why, as the first coordinator that found it out said it."""
        found = {id: trouble.sentence(id) for id, trouble in self.sim.membership._judge.troubles().items()}
        self._lost = found | self._lost
        return self._lost

    def why(self) -> str:
        return "; ".join(self.lost().values())

    def whereabouts(self) -> str:
        members = self.sim.membership._roster.members.items()
        where = ", ".join(f"{id} {state.beat.doing} at {state.beat.step}" for id, state in members if state.counts)
        return (
            f"view {self.views[-1] if self.views else None}; {where}; lost: {self.why()}; {len(self._committed)} steps"
        )


@dataclass
class PacedWatcher(Watcher):
    """The promises where each worker computes at its own pace; those of shards are ShardHistory's."""

    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)  # of each epoch: the weights that all have then

    def met(self, script: Script, epoch: int, logs: Logs, at: Position) -> None:
        """All have the same weights at the end of an epoch."""
        weights = tuple(int(variable.value[0]) for variable in script.engine.variables.trainable)
        plan, history = self.sim.plan, self.sim.history
        if not any(history.gone.values()):  # else some may have looked before a shard was lost, and some after that
            self.same(script, f"the weights at the end of epoch {epoch}", weights)
        self.ends[epoch] = weights
        if not any(history.gone.values()) and not history.halted:
            self.check(logs["samples"] == plan.batches, f"epoch {epoch} had {logs['samples']} samples")
            due = plan.batches * (epoch + 1)
            self.check(at.trained == due, f"{script.process.name} has counted {at.trained} updates, not {due}")

    def finished(self, script: Script) -> None:
        if not script.run.is_server:
            self.done.append(script.process.name)

    def knows(self, id: str) -> bool:
        """Servers have what counts."""
        return self.counts(id) and self.sim.world.processes[id].alive

    def at_good_end(self) -> None:
        self.sim.history.at_the_end()


# Playing ----------------------------------------------------------------------------------------------

LIMIT = 300.0


def due(plan: Plan) -> float:
    """Until when it must be over. Only those who can't reach each other may take long."""
    if any(fault.kind in ("cut", "away", "ghost") for fault in plan.faults):
        return LIMIT
    if plan.at_own_pace:
        return 30.0 * max(1.0, plan.slow / 5)
    dawdled = sum(plan.stall for fault in plan.faults if fault.kind == "dawdle")
    hops = 20.0 * plan.stages  # a piece goes from stage to stage, and every message may be held up
    return 20.0 * (1 + plan.parts) / 2 + 6.0 * len(plan.faults) + dawdled + hops


def _covers(placement: Placement, here: set[str]) -> bool:
    return all({view.primary, *view.backups} & here for view in placement.views)


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
            for name in (
                *("late", "lost_beats", "repeats", "nested", "validates", "stop_at", "raises", "executes"),
                *("repeated", "slow", "saves"),
            )
            if getattr(plan, name) != getattr(plainer, name)
        ]
        for candidate in candidates:
            if (error := fails(candidate)) is not None:
                plan, wrong, shrunk = candidate, error, True
                break
    return plan, wrong
