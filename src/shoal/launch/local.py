"""A run on this machine: starts the coordinator, the workers and the servers, waits for them, leaves nothing behind.

The coordinator says when and why the run is over (End). Members that do not follow by themselves get the signals
of a farewell, one after the other. When all are gone the leash is let go, and the coordinator goes with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from shoal.cluster import folders
from shoal.cluster.evidence import look_at
from shoal.cluster.leash import Dying, Interrupt, Leash, Reaped, Released, Spawned, Told, Wanted
from shoal.cluster.messages import End
from shoal.cluster.trouble import ending
from shoal.cluster.view import Role, role_of
from shoal.errors import WireError
from shoal.launch import logs, report
from shoal.launch.nursery import Nursery, adopt_orphans
from shoal.launch.plan import Plan, ProcessPlan
from shoal.launch.processes import Child, Process
from shoal.launch.worker import ENDED, INTERRUPTED
from shoal.wire.certificates import Pin
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.tickets import Ticket

Farewell = tuple[tuple[float, signal.Signals], ...]

# The signals that stragglers get, each so many seconds after the end was known.
AFTER_SUCCESS: Farewell = ((30.0, signal.SIGTERM), (31.0, signal.SIGKILL))  # interpreters may end slowly
AFTER_FAILURE: Farewell = ((1.0, signal.SIGTERM), (2.0, signal.SIGKILL))
ON_INTERRUPT: Farewell = ((0.0, signal.SIGINT), (5.0, signal.SIGTERM), (6.0, signal.SIGKILL))
WITH_CHECKPOINT: Farewell = ((65.0, signal.SIGINT), (70.0, signal.SIGTERM), (71.0, signal.SIGKILL))
AT_ONCE: Farewell = ((0.0, signal.SIGKILL),)

_HEARD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOLLOW_EVERY = 0.1  # seconds between two looks at the logs under --verbose
_WATCH_EVERY = 1.0  # seconds between two looks at the coordinator
_COORDINATOR_LEAVES = 5.0  # seconds that it gets when it is no longer needed
_COORDINATOR_RESTARTS = 10  # within an hour; more would hide that something is wrong with this machine
_HOUR = 3600.0
_NOT_REPLACED = (0, ENDED, INTERRUPTED)  # exit codes of members that left on purpose
_CHILDREN_LEAVE = 1.0  # seconds that the children of ended members get


def launch(plan: Plan, environ: Mapping[str, str]) -> int:
    """Run it to its end; returns the exit code for the shell. UsageError if it can't be started."""
    config = plan.config
    logs_folder = logs.prepare(Path(config.logs), prune=Path(config.logs).name == config.run)
    with folders.create(folders.home(environ), config.run) as folder:
        key = RunKey.new()
        key.save(folder / "key")
        # Bound once and let go: an address in use, or too long, is found before anything is started.
        address = config.address or folders.coordinator_address(folder)
        certificate = folders.certificate(folder, address)
        Listener(address, key, certificate=certificate).close()
        config.save(folder)
        if plan.ticket is not None:
            pin = certificate.pin if certificate is not None else Pin(bytes(32))  # nobody shows one on this host
            Ticket(config.run, key, pin).save(plan.ticket)
        print(report.opening(config), file=sys.stderr, flush=True)
        with _Launcher(plan, folder, logs_folder, environ) as launcher:
            end = launcher.run()
    if not end.ok:
        print(f"\n{report.closing(end, config)}", file=sys.stderr, flush=True)
    return end.code


class _Launcher:
    """The launcher's loop. It decides nothing about the run: it tells what it sees and carries out its End."""

    def __init__(self, plan: Plan, folder: Path, logs_folder: Path, environ: Mapping[str, str]) -> None:
        self._logs = logs_folder
        self._folder = folder
        self._plans = plan.workers
        self._saves = plan.config.saving is not None
        self._max_restarts = plan.max_restarts
        self._places: dict[str, ProcessPlan] = {}  # member -> what it, or one in its place, is started with
        self._restarts: dict[str, list[float]] = {}  # place -> when one was started anew
        self._lost: set[str] = set()
        self._silence = plan.config.deadlines.silence
        self._coordinator_ran = time.monotonic()
        self._end: End | None = None
        self._interrupts = 0
        self._farewell: deque[tuple[float, signal.Signals]] = deque()
        self._members: dict[str, Child] = {}
        self._nursery: Nursery | None = None
        self._coming: dict[str, int] = {}  # who was asked for and is not there yet -> the end of its canary's pipe
        self._selector = selectors.DefaultSelector()
        with contextlib.ExitStack() as stack:  # what was started is ended, also if the rest can't be
            stack.callback(self._selector.close)
            self._signals = stack.enter_context(_signals_as_bytes())
            self._selector.register(self._signals, selectors.EVENT_READ, self._hear_signals)
            self._environ = environ
            self._lasts = plan.config.least is not None
            self._coordinators: list[float] = []  # when one was started anew
            self._start_coordinator()
            stack.callback(self._end_coordinator)
            stack.callback(self._end_members)
            self._terminal = tuple(os.dup(stream) for stream in (1, 2))  # for a worker that becomes the chief
            for fd in self._terminal:
                stack.callback(os.close, fd)
            stack.callback(self._end_nursery)
            self._start_nursery(plan)
            for place in (*plan.workers, *plan.servers):
                self._start(place.id, place)
            followed = [id for id in self._places if id != report.CHIEF] if plan.config.verbose else []
            self._follower = logs.Follower({id: logs.path_of(logs_folder, id) for id in followed})
            stack.callback(self._follower.close)
            self._follows = bool(followed)
            self._stack = stack.pop_all()

    def __enter__(self) -> _Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int) and key.fileobj != self._signals:
                os.close(key.fileobj)
        self._stack.close()

    def run(self) -> End:
        """Wait until the run is over and all members are gone."""
        while self._end is None or self._alive():
            # The coordinator first: what it says explains what else is seen.
            ready = self._selector.select(self._patience())
            for key, _ in sorted(ready, key=lambda found: found[0].fileobj is not self._leash):
                key.data()
            self._watch_coordinator()
            self._say_farewell()
            self._follow()
        self._follow(final=True)
        return self._with_late_deaths(self._end)

    # Starting ---------------------------------------------------------------------------------------

    def _start_coordinator(self) -> None:
        self._coordinator_ran = time.monotonic()
        with logs.path_of(self._logs, "coordinator").open("ab") as log:
            process = Process(
                "shoal.launch.coordinator",
                [str(self._folder)],
                self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._leash = Leash(process.stdout.fileno(), process.stdin.fileno())
        self._selector.register(self._leash, selectors.EVENT_READ, self._hear_coordinator)
        self._coordinator = process

    def _restart_coordinator(self, how: str) -> None:
        """Training goes on without it; it comes back knowing what it had written down, and hears who is alive."""
        now = time.monotonic()
        self._coordinators = [*(at for at in self._coordinators if now - at < _HOUR), now]
        text = f"the coordinator (pid {self._coordinator.pid}) {how}; starting it again, training goes on"
        print(f"shoal: {text}", file=sys.stderr, flush=True)
        self._coordinator.release()
        self._start_coordinator()
        for id, member in self._members.items():
            self._leash.send(Spawned(id, member.pid))
            if (code := member.look()) is not None:
                self._leash.send(Reaped(id, code))

    def _start_nursery(self, plan: Plan) -> None:
        """Only where it pays, and where the script leaves the backend to us."""
        if len(plan.workers) + len(plan.servers) > 1 and plan.preloads and adopt_orphans():
            with logs.path_of(self._logs, "nursery").open("wb") as log:
                self._nursery = Nursery(self._folder, plan.workers[0].environment, log)
            self._selector.register(self._nursery, selectors.EVENT_READ, self._hear_nursery)

    def _start(self, id: str, plan: ProcessPlan) -> None:
        dies, lives = os.pipe()
        self._places[id] = plan
        cores = ",".join(map(str, plan.cores)) or "-"
        # At the terminal, as a plain script would be, is the chief; others that may become it get the way there.
        terminal = self._terminal if role_of(id) == "worker" and id != report.CHIEF else ()
        gets = (lives, *terminal)
        words = [str(self._folder), id, cores, "{0}", *(["{1},{2}"] if terminal else [])]
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lives)
            standard: tuple[int, ...] = (0, 1, 2)
            if id != report.CHIEF:
                log = stack.enter_context(logs.path_of(self._logs, id).open("wb"))
                nothing = stack.enter_context(open(os.devnull, "rb"))
                standard = (nothing.fileno(), log.fileno(), log.fileno())
            if self._nursery is not None:
                try:
                    self._nursery.ask(id, words, standard, gets)
                    self._coming[id] = dies
                    return
                except WireError:
                    self._lose_nursery()
            words = [word.format(*gets) for word in words]
            process = Process("shoal.launch.worker", words, plan.environment, standard=standard, pass_fds=gets)
        self._take_in(id, process, dies)

    def _take_in(self, id: str, member: Child, dies: int) -> None:
        self._selector.register(dies, selectors.EVENT_READ, partial(self._see_dying, id, dies))
        self._members[id] = member
        self._selector.register(member, selectors.EVENT_READ, partial(self._see_exit, id))
        self._leash.send(Spawned(id, member.pid))

    def _hear_nursery(self) -> None:
        assert self._nursery is not None
        try:
            while (born := self._nursery.born()) is not None:
                self._take_in(born.id, Child(born.pid), self._coming.pop(born.id))
                self._nursery.let_go(born.id)
        except WireError:
            self._lose_nursery()

    def _lose_nursery(self) -> None:
        """Whoever has not come from there yet is started as if there had been none."""
        assert self._nursery is not None
        self._selector.unregister(self._nursery)
        self._nursery.close()
        self._nursery = None
        coming, self._coming = self._coming, {}
        for id, dies in coming.items():
            os.close(dies)
            self._start(id, self._places[id])

    def _next_id(self, role: Role) -> str:
        """An id that nobody had before."""
        return f"{role}-{sum(role_of(id) == role for id in self._places)}"

    def _spare_plan(self) -> ProcessPlan:
        """What one more worker is started with: as those whose cores are used least."""
        alive = (id for id, member in self._members.items() if member.look() is None)
        used = Counter(self._places[id].id for id in (*alive, *self._coming))
        return min(self._plans, key=lambda plan: used[plan.id])

    def _replace(self, id: str) -> None:
        """Start another in the place of a member that died, unless too many have died there."""
        plan = self._places[id]
        now = time.monotonic()
        recent = [at for at in self._restarts.get(plan.id, []) if now - at < _HOUR]
        if len(recent) >= self._max_restarts:
            if self._max_restarts:
                text = f"{plan.id} was replaced {len(recent)} times within an hour; the run goes on without it"
                print(f"shoal: {text}", file=sys.stderr, flush=True)
            return
        self._restarts[plan.id] = [*recent, now]
        self._start(self._next_id(role_of(id)), plan)

    # What is seen and heard -------------------------------------------------------------------------

    def _see_dying(self, id: str, pipe: int) -> None:
        """Its canary is gone: the process is about to be, as soon as its memory is given back."""
        self._selector.unregister(pipe)
        os.close(pipe)
        self._leash.send(Dying(id))

    def _see_exit(self, id: str) -> None:
        member = self._members[id]
        code = member.look()
        if code is not None:
            self._selector.unregister(member)
            self._leash.send(Reaped(id, code))
            if self._end is None:
                self._lost.add(id)
                if not self._interrupts and code not in _NOT_REPLACED:
                    self._replace(id)

    def _hear_coordinator(self) -> None:
        try:
            for message in self._leash.receive():
                if isinstance(message, End):
                    self._finish(message)
                elif isinstance(message, Wanted):
                    for _ in range(message.workers):
                        self._start(self._next_id("worker"), self._spare_plan())
                elif isinstance(message, Told):
                    print(f"shoal: {message.text}", file=sys.stderr, flush=True)
        except EOFError:
            self._selector.unregister(self._leash)
            if self._end is None:
                self._coordinator.wait(_COORDINATOR_LEAVES)
                how = ending(self._coordinator.look() or 0)
                if self._lasts and len(self._coordinators) < _COORDINATOR_RESTARTS and not self._interrupts:
                    self._restart_coordinator(how)
                    return
                log = logs.path_of(self._logs, "coordinator")
                reason = f"the coordinator (pid {self._coordinator.pid}) {how}; its log is {log}"
                self._finish(End(ok=False, code=1, reason=reason))

    def _watch_coordinator(self) -> None:
        """One that was stopped could never say End. One that ended is seen by its leash."""
        seen = look_at(self._coordinator.pid)
        now = time.monotonic()
        if seen is None or seen.state not in "Tt":
            self._coordinator_ran = now
        elif self._end is None and now - self._coordinator_ran > self._silence:
            stopped = f"has been stopped for {now - self._coordinator_ran:.1f} s"
            if self._lasts:
                self._coordinator_ran = now
                self._coordinator.kill_group()  # its leash tells; another is started
                return
            reason = f"the coordinator (pid {self._coordinator.pid}) {stopped} (deadline {self._silence:.1f} s)"
            self._finish(End(ok=False, code=1, reason=reason))

    def _hear_signals(self) -> None:
        for number in os.read(self._signals, 64):
            if number in _HEARD_SIGNALS:
                self._interrupts += 1
                name = signal.Signals(number).name
                self._leash.send(Interrupt(f"it was interrupted ({name})", 128 + number))
                if self._interrupts == 1:
                    first = "writing a checkpoint and ending" if self._saves else "ending"
                    print(f"\nshoal: {first} the run; a second Ctrl-C ends it at once", file=sys.stderr, flush=True)
                gently = WITH_CHECKPOINT if self._saves else ON_INTERRUPT
                self._bid(gently if self._interrupts == 1 else AT_ONCE)

    def _finish(self, end: End) -> None:
        self._end = end
        if not self._interrupts:
            self._bid(AFTER_SUCCESS if end.ok else AFTER_FAILURE)

    # Ending -----------------------------------------------------------------------------------------

    def _bid(self, farewell: Farewell) -> None:
        now = time.monotonic()
        self._farewell = deque((now + delay, number) for delay, number in farewell)

    def _say_farewell(self) -> None:
        while self._farewell and self._farewell[0][0] <= time.monotonic():
            _, number = self._farewell.popleft()
            for member in self._alive():
                member.send(number)

    def _patience(self) -> float:
        """Until when nothing needs to be done unless something happens."""
        look_again = _FOLLOW_EVERY if self._follows else _WATCH_EVERY
        if not self._farewell:
            return look_again
        return min(look_again, max(0.0, self._farewell[0][0] - time.monotonic()))

    def _follow(self, final: bool = False) -> None:
        for line in self._follower.new_lines(final) if self._follows else ():
            print(line, file=sys.stderr, flush=True)

    def _alive(self) -> list[Child]:
        return [member for member in self._members.values() if member.look() is None]

    def _with_late_deaths(self, end: End) -> End:
        """A worker that crashed after its script had finished is no success. Servers have nothing to finish."""
        others = self._lost.union(end.culprits)  # who did not finish
        workers = {id: member for id, member in self._members.items() if role_of(id) == "worker"}
        codes = {id: worker.look() for id, worker in workers.items() if id not in others}
        # ENDED: one that was started so late that the coordinator, which names who did not finish, had not heard of it.
        crashed = {id: code for id, code in codes.items() if code is not None and code not in (0, ENDED)}
        if not end.ok or not crashed:
            return end
        id, code = next(iter(crashed.items()))
        reason = f"{id} finished its script, but its process then {ending(code)}"
        return End(ok=False, code=1, reason=reason, culprits=tuple(crashed))

    def _end_nursery(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
        for dies in self._coming.values():
            os.close(dies)

    def _end_members(self) -> None:
        for member in self._alive():  # only if something went wrong in the launcher itself
            member.kill_group()
        children_until = time.monotonic() + _CHILDREN_LEAVE
        for member in self._members.values():
            member.release(children_until)
        self._leash.send(Released())

    def _end_coordinator(self) -> None:
        self._coordinator.send(signal.SIGCONT)  # it may have been stopped
        self._coordinator.close_pipes()
        self._coordinator.wait(_COORDINATOR_LEAVES)
        self._coordinator.release()


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """A descriptor from which the signals that end a run can be read, one byte each."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    before = {number: signal.signal(number, lambda *_: None) for number in _HEARD_SIGNALS}
    old_fd = signal.set_wakeup_fd(write_fd)
    try:
        yield read_fd
    finally:
        signal.set_wakeup_fd(old_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
