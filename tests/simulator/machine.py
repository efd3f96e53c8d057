"""Machines without machines: processes are greenlets, sockets are queues, time is a number.

The real code of a worker (CoordinatorLink with its thread, Session, WorkerGroup, form, Messenger, Exchanges, the
store's Client with its thread) and of a server (Server), with the Links between them, runs in here unchanged.
`simulated(world)` replaces what it takes from the system: the clock, threads, eventfd, poll, connections. Every wait
becomes a wait in one seeded scheduler, so a run is a function of its seed.

Streams keep their order; across streams anything may overtake anything. A closed end is seen behind what was sent on
it. A paused process does nothing, and what is sent to it waits. Between two parts of the network that are cut off from
each other everything is held up until they can reach each other again. A connection that breaks loses what is on its
way, in both directions.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

import shoal.clock
from shoal.clock import Deadline
from shoal.cluster.coordinator_link import link as coordinator_link
from shoal.cluster.coordinator_link import reaching, service_feed
from shoal.cluster.messages import Beat
from shoal.collectives import formation, messenger
from shoal.errors import BadFrame, PeerClosed, PeerTimeout
from shoal.observe import recorder
from shoal.observe.counters import Counters, SystemFigures, WorkerFigures
from shoal.store import client, links, server
from shoal.store.values.messages import ShardMessage
from shoal.training import pipeline_step, pipelined, store_layout, synchronous
from shoal.wire.messages import Message
from shoal.wire.transfer import transfer

EOF = None
FOREVER = math.inf


class World:
    """One seeded scheduler: what happens next, and when."""

    def __init__(
        self,
        seed: int,
        latency: float = 0.002,
        late: float = 0.0,
        lost_beats: float = 0.0,
        lateness: float = 0.5,
        repeated: float = 0.0,
        torn: float = 0.0,
    ) -> None:
        """All but the latency are probabilities: that a message is held up, by `lateness` seconds at most; that a beat
        is lost; that a message about a shard comes twice; that what a killed process has sent last is lost with it.
        """
        self.random = random.Random(seed)
        self.latency, self.late, self.lost_beats = latency, late, lost_beats
        self.lateness, self.repeated, self.torn = lateness, repeated, torn
        self.on_sent: Callable[[Process, Message], None] | None = None
        self.history: Any = None  # of shards, for those who observe them
        self.disk: Any = None  # where checkpoints are
        self.time = 0.0
        self.processes: dict[str, Process] = {}
        self.sent = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._cut: dict[frozenset[str], list[tuple[End, Any]]] = {}  # who can't reach whom -> what is held up
        self._down: set[frozenset[str]] = set()  # between whom there is no connection
        self.hub = getcurrent()

    def now(self) -> float:
        return self.time

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), act))

    def soon(self, act: Callable[[], None]) -> None:
        self.at(self.time + self.random.random() * 0.001, act)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Let things happen. False if it is not over before the limit."""
        self.hub = getcurrent()
        agenda, pop = self._agenda, heapq.heappop
        while not until():
            if not agenda or agenda[0][0] > limit:
                return False
            self.time, _, act = pop(agenda)
            act()
        return True

    def end_all(self) -> None:
        for process in self.processes.values():
            process.kill(-9)

    # The network ------------------------------------------------------------------------------------

    def connected(self, here: Process, there: Process) -> tuple[End, End]:
        ends = End(self, here, there.name), End(self, there, here.name)
        ends[0].other, ends[1].other = ends[1], ends[0]
        return ends

    def carry(self, end: End, item: Any) -> None:
        """From this end of a stream to the other."""
        self.sent += 1
        assert end.other is not None
        if self._cut and (pair := frozenset((end.process.name, end.other.process.name))) in self._cut:
            self._cut[pair].append((end, item))
            return
        delay = self.random.expovariate(1 / self.latency)
        if self.late and self.random.random() < self.late:
            delay += self.random.random() * self.lateness
        end.arrival = max(end.arrival, self.time + delay)
        self.at(end.arrival, lambda: end.other.arrive(item))
        repeatable = self.repeated and item is not EOF and isinstance(item[0], ShardMessage)
        if repeatable and self.random.random() < self.repeated:
            self.at(end.arrival, lambda: end.other.arrive(item))

    def break_off(self, one: str, other: str, seconds: float) -> None:
        """Their connections break, and for so long there is no other."""
        pair = frozenset((one, other))
        if len(pair) == 1 or pair in self._down or not pair <= self.processes.keys():
            return
        self._down.add(pair)
        self.at(self.time + seconds, lambda: self._down.discard(pair))
        for end in [end for end in self.processes[one].ends if end.other and end.other.process.name == other]:
            end.tear()

    def are_down(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._down

    def cut_off(self, one: str, other: str) -> None:
        self._cut.setdefault(frozenset((one, other)), [])

    def heal(self, one: str, other: str) -> None:
        for end, item in self._cut.pop(frozenset((one, other)), []):
            self.carry(end, item)

    def are_cut_off(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def switch(self) -> None:
        self.hub.switch()


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, run: Callable[[], None]) -> None:
        self.process = process
        self.done = False
        self._ready: Callable[[], Any] | None = None
        self._until = FOREVER
        self._alarm = FOREVER  # the first time on the agenda at which it is looked whether `_until` has come
        self._condition: _Condition | None = None  # that it waits for: nothing else wakes it
        self._scheduled = False
        # Its parent is the scheduler, whoever starts it: there it goes when it is over.
        self._greenlet = greenlet(lambda: self._run(run), process.world.hub)
        self._greenlet.task = self
        process.tasks.append(self)
        self._scheduled = True
        process.world.soon(self._resume)

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except GreenletExit:
            pass
        finally:
            self.done = True
            self.process.poke()

    def block(self, ready: Callable[[], Any], until: float = FOREVER, condition: _Condition | None = None) -> bool:
        """Whether it became true before `until`. Of a condition: it is looked at when that is notified."""
        process, world = self.process, self.process.world
        while not ready():
            if not process.alive:
                raise GreenletExit
            if world.time >= until:
                return False
            self._ready, self._until, self._condition = ready, until, condition
            if until < self._alarm:
                self._alarm = until
                world.at(until, self._expire)
            world.hub.switch()
        return True

    def sleep(self, seconds: float) -> None:
        self.block(lambda: False, self.process.world.time + seconds)

    def poke(self) -> None:
        """Something has happened to its process."""
        if self._ready is not None and not self._scheduled and self._ready():
            self._scheduled = True
            self.process.world.soon(self._resume)

    def throw(self) -> None:
        if not self.done:
            self._ready = None
            if self._greenlet:
                self._greenlet.throw(GreenletExit)
            self.done = True

    def _expire(self) -> None:
        world = self.process.world
        if world.time < self._alarm:
            return  # an earlier one was set meanwhile, and set this one anew
        self._alarm = FOREVER
        if self._ready is None or self._until == FOREVER:
            return
        if world.time < self._until:
            self._alarm = self._until
            world.at(self._until, self._expire)
        elif not self._scheduled:
            self._resume()

    def _resume(self) -> None:
        process = self.process
        self._scheduled = False
        if not process.alive or self.done:
            return
        if process.world.time < process.paused_until:
            self._scheduled = True
            process.world.at(process.paused_until, self._resume)
            return
        if self._ready is not None and not self._ready() and process.world.time < self._until:
            return
        self._ready = self._condition = None
        self._greenlet.switch()


class Process:
    """What can be killed or stopped as a whole."""

    def __init__(self, world: World, name: str, on_exit: Callable[[int], None] = lambda code: None) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused_until = 0.0
        self.tasks: list[Task] = []
        self.ends: list[End] = []
        self.listener: SimulatedListener | None = None
        self._on_exit = on_exit
        world.processes[name] = self

    def start(self, run: Callable[[], None]) -> Task:
        return Task(self, run)

    def poke(self) -> None:
        """Something has happened that threads may wait for, but for those that wait for a condition."""
        for task in self.tasks:
            if task._ready is not None and task._condition is None:
                task.poke()

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.time + seconds)

    @property
    def paused(self) -> bool:
        return self.world.time < self.paused_until

    def exit(self, code: int) -> None:
        """It ends by itself."""
        self._end(code)

    def kill(self, code: int) -> None:
        if self.alive:
            self._end(code)
            self._throw()

    def _end(self, code: int) -> None:
        if not self.alive:
            return
        self.alive = False
        for end in self.ends:
            if self.world.torn and self.world.random.random() < self.world.torn and end.other is not None:
                end.tear()
            end.close(dying=True)
        if self.listener is not None:
            self.listener.close()
        self.world.at(self.world.time, self._throw)
        self._on_exit(code)

    def _throw(self) -> None:
        for task in self.tasks:
            task.throw()


def current() -> Task:
    """Whose code is running."""
    return getcurrent().task  # type: ignore[attr-defined,no-any-return]


class End:
    """One end of a connection, with the interface of `wire.connection.Connection`."""

    pending = is_arriving = False
    bytes_sent = bytes_received = 0
    carries_fds = False

    def __init__(self, world: World, process: Process, peer: str) -> None:
        self.world = world
        self.process = process
        self.peer = peer
        self.other: End | None = None
        self.arrival = 0.0
        self.inbox: deque[tuple[Message, list[bytes]]] = deque()
        self.eof = self.closed = self.torn = False
        self.on_message: Callable[[Message | None], None] | None = None
        process.ends.append(self)

    def post(self, message: Message, buffers: Sequence[memoryview] = ()) -> None:
        if self.closed or self.eof:
            raise PeerClosed(self.peer, f"the connection to {self.peer} closed")
        if not self.process.alive:
            return
        if self.world.lost_beats and isinstance(message, Beat) and self.world.random.random() < self.world.lost_beats:
            return
        if not self.torn:  # else it does not know yet
            self.world.carry(self, (message, [bytes(buffer) for buffer in buffers]))
        if self.world.on_sent is not None:
            self.world.on_sent(self.process, message)

    def send(self, message: Message, buffers: Sequence[memoryview] = (), deadline: Deadline | None = None) -> None:
        self.post(message, buffers)

    def flush(self) -> bool:
        return True

    def give_up_after(self, seconds: float) -> None:
        """As on a unix socket, it does not."""

    def local_host(self) -> str:
        return "127.0.0.1"

    @property
    def buffered(self) -> bool:
        return bool(self.inbox)

    def readable(self) -> bool:
        return bool(self.inbox) or self.eof

    def try_receive(self, place: Callable[[Message], Sequence[memoryview]] | None = None) -> Message | None:
        if not self.inbox:
            if self.eof or self.closed:
                raise PeerClosed(self.peer, f"the connection to {self.peer} closed")
            return None
        message, buffers = self.inbox.popleft()
        if buffers:
            views = [view.cast("B") for view in (place(message) if place else ())]
            if [view.nbytes for view in views] != [len(buffer) for buffer in buffers]:
                raise BadFrame(f"{type(message).__name__} from {self.peer} brings buffers that were not expected")
            for view, buffer in zip(views, buffers, strict=True):
                view[:] = buffer
        return message

    def try_receive_fds(self, place: Any = None) -> tuple[Message, list[int]] | None:
        message = self.try_receive(place)
        return None if message is None else (message, [])

    def receive(self, deadline: Deadline, place: Any = None, wake: Any = None) -> Message:
        while (message := self.try_receive(place)) is None:
            if not wait(self, 0, deadline, wake):
                raise PeerTimeout((self.peer,), f"{self.peer} did not send a message in time")
        return message

    def tear(self) -> None:
        """The connection breaks: what is on its way is lost. Both ends notice in a moment."""
        for end in (self, self.other):
            if end is not None and not end.torn:
                end.torn = True
                self.world.soon(partial(end.arrive, EOF))

    def arrive(self, item: Any) -> None:
        if self.closed or (self.torn and item is not EOF):
            return
        if self.on_message is not None:
            self.on_message(item[0] if item is not EOF else None)
            return
        if item is EOF:
            self.eof = True
        else:
            self.inbox.append(item)
        self.process.poke()

    def close(self, dying: bool = False) -> None:
        if not self.closed:
            self.closed = True
            self.inbox.clear()
            if (self.process.alive or dying) and not self.torn:
                self.world.carry(self, EOF)
            with contextlib.suppress(ValueError):
                if not dying:
                    self.process.ends.remove(self)


class SimulatedListener:
    """Where peers connect. Nobody's handshake goes on while nobody accepts."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._strangers: deque[tuple[End, Callable[[], None]]] = deque()
        self._closed = False
        process.listener = self

    def arrive(self, end: End, welcome: Callable[[], None]) -> None:
        if self._closed:
            end.close()
            return
        self._strangers.append((end, welcome))
        self._process.poke()

    def accept(self, codec: Any, deadline: Deadline, wake: Any = None) -> End:
        if not _block(lambda: bool(self._strangers), deadline, wake):
            raise PeerTimeout(("a peer",), "nobody connected in time")
        end, welcome = self._strangers.popleft()
        welcome()
        return end

    def readable(self) -> bool:
        return bool(self._strangers)

    def poll_accept(self, codec: Any) -> list[End]:
        accepted = []
        while self._strangers:
            end, welcome = self._strangers.popleft()
            welcome()
            accepted.append(end)
        return accepted

    def close(self) -> None:
        self._closed = True
        while self._strangers:
            self._strangers.popleft()[0].close(dying=True)


# What stands in for the system's own ------------------------------------------------------------------


class SimulatedWakeup:
    """`wire.wakeup.Wakeup` without a descriptor."""

    def __init__(self) -> None:
        self._process = current().process
        self._reason: BaseException | None = None

    def set(self, reason: BaseException) -> None:
        if self._reason is None:
            self._reason = reason
            self._process.poke()

    def check(self) -> None:
        if self._reason is not None:
            raise self._reason

    def readable(self) -> bool:
        return self._reason is not None

    def fileno(self) -> Any:
        return self

    def close(self) -> None:
        pass


class _EventFd:
    def __init__(self, *_: int) -> None:
        self.count = 0
        self.process = current().process

    def __ge__(self, least: int) -> bool:
        return True  # it is a descriptor

    def close(self) -> None:
        """Nothing is left of it."""

    def readable(self) -> bool:
        return self.count > 0

    def write(self, count: int) -> None:
        self.count += count
        self.process.poke()

    def read(self) -> int:
        if not self.count:
            raise BlockingIOError
        count, self.count = self.count, 0
        return count


class _Poll:
    def __init__(self) -> None:
        self._registered: list[Any] = []

    def register(self, what: Any, events: int) -> None:
        self._registered.append(what)

    def poll(self, milliseconds: float) -> list[Any]:
        task = current()
        registered = self._registered

        def ready() -> bool:
            for what in registered:  # noqa: SIM110
                if what.readable():
                    return True
            return False

        task.block(ready, task.process.world.time + milliseconds / 1000)
        return [what for what in registered if what.readable()]


class _Key(NamedTuple):
    """As `selectors.SelectorKey`."""

    fileobj: Any
    events: int
    data: Callable[[], None]


class _Selector:
    """`selectors.DefaultSelector` for what is `readable`."""

    def __init__(self) -> None:
        self._keys: dict[int, _Key] = {}

    def register(self, what: Any, events: int, data: Callable[[], None]) -> None:
        assert id(what) not in self._keys, "registered twice"
        self._keys[id(what)] = _Key(what, events, data)

    def unregister(self, what: Any) -> None:
        del self._keys[id(what)]

    def modify(self, what: Any, events: int, data: Callable[[], None]) -> None:
        self._keys[id(what)] = _Key(what, events, data)

    def get_key(self, what: Any) -> _Key:
        return self._keys[id(what)]

    def select(self, seconds: float) -> list[tuple[_Key, int]]:
        task = current()
        keys = self._keys.values()

        def ready() -> bool:
            for key in keys:  # noqa: SIM110 (a generator costs as much as what it asks for)
                if key.fileobj.readable():
                    return True
            return False

        task.block(ready, task.process.world.time + seconds)
        return [(key, 1) for key in keys if key.fileobj.readable()]

    def close(self) -> None:
        self._keys.clear()


class _Condition:
    """No lock is needed among greenlets; but a thread may have to wait for one, and the world goes on meanwhile."""

    def __init__(self) -> None:
        self._process = current().process

    def __enter__(self) -> None:
        task = current()
        world = self._process.world
        if task is self._process.tasks[0] and world.random.random() < 0.03:
            task.sleep(world.random.random() * 0.02)

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> bool:
        until = FOREVER if timeout is None else self._process.world.time + timeout
        return current().block(predicate, until, self)

    def notify_all(self) -> None:
        for task in self._process.tasks:
            if task._condition is self:
                task.poke()


class _Event:
    def __init__(self) -> None:
        self._set = False
        self._process = current().process

    def set(self) -> None:
        self._set = True
        self._process.poke()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        return current().block(self.is_set, self._process.world.time + timeout)


class _Thread:
    def __init__(self, target: Callable[..., None], name: str, daemon: bool, args: tuple[Any, ...] = ()) -> None:
        self._target = partial(target, *args)
        self._task: Task | None = None

    def start(self) -> None:
        self._task = current().process.start(self._target)

    def join(self) -> None:
        if self._task is not None:
            current().block(lambda: self._task is None or self._task.done)


def _exit_at_once(code: int) -> None:
    task = current()
    task.process.exit(code)
    raise GreenletExit


def _block(ready: Callable[[], bool], deadline: Deadline, wake: SimulatedWakeup | None) -> bool:
    """True once it is so, False once the deadline has passed; raises the wakeup's reason if set."""
    if wake is None:
        return current().block(ready, deadline.at)
    wake.check()
    current().block(lambda: wake._reason is not None or ready(), deadline.at)
    wake.check()
    return ready()


def wait(what: Any, events: int, deadline: Deadline, wake: Any = None) -> bool:
    return _block(what.readable, deadline, wake)


def await_any(awaited: Iterable[End], unsent: Iterable[End], deadline: Deadline, wake: Any = None) -> list[End]:
    ends = list(awaited)

    def ready() -> bool:
        for end in ends:  # noqa: SIM110
            if end.inbox or end.eof:
                return True
        return False

    _block(ready, deadline, wake)
    return [end for end in ends if end.inbox or end.eof]


def connect(address: str, key: object, codec: object, deadline: Deadline, wake: Any = None) -> End:
    here = current().process
    world = here.world
    there = world.processes[address.removeprefix("unix:")]
    if there.name == COORDINATOR:
        if not there.alive:
            raise PeerClosed(address, f"no connection to {address}: Connection refused")
        return there.accept(here)  # type: ignore[attr-defined,no-any-return]
    mine, theirs = world.connected(here, there)
    mine.peer = theirs.peer = address
    proven: list[bool] = []

    def arrive() -> None:
        if world.are_cut_off(here.name, there.name):
            world.at(world.time + 1.0, arrive)  # as TCP does, it tries again
        elif world.are_down(here.name, there.name) or there.listener is None or not there.alive:
            theirs.close(dying=True)
        else:
            there.listener.arrive(theirs, welcome)

    def welcome() -> None:
        world.carry(theirs, (_PROVEN, []))

    def is_proven() -> bool:
        if mine.inbox and mine.inbox[0][0] is _PROVEN:
            mine.inbox.popleft()
            proven.append(True)
        return bool(proven) or mine.eof

    world.at(world.time + world.random.expovariate(1 / world.latency), arrive)
    try:
        if not _block(is_proven, deadline, wake):
            raise PeerTimeout((address,), f"{address} did not finish the handshake before the deadline")
        if not proven:
            raise PeerClosed(address, f"no connection to {address}: Connection refused")
    except BaseException:
        mine.close()
        raise
    return mine


class _Proven(Message, frozen=True):
    """The listener has proven the run's key."""


_PROVEN = _Proven()
_NO_FIGURES = WorkerFigures()
COORDINATOR = "coordinator"


Replaced = tuple[object, str, object]


@contextlib.contextmanager
def simulated(world: World, more: Sequence[Replaced] = ()) -> Iterator[None]:
    """Within it, the code of members runs in this world. `more`: what else stands in for the product's own."""
    clock = SimpleNamespace(now=world.now)
    system = SimpleNamespace(
        eventfd=_EventFd,
        eventfd_write=_EventFd.write,
        eventfd_read=_EventFd.read,
        EFD_CLOEXEC=0,
        EFD_NONBLOCK=0,
        close=_EventFd.close,
        _exit=_exit_at_once,
        getppid=lambda: 1,
        register_at_fork=lambda after_in_child: None,
    )
    threads = SimpleNamespace(Condition=_Condition, Event=_Event, Lock=_Condition, Thread=_Thread)
    watch = SimpleNamespace(monotonic=world.now, sleep=lambda seconds: current().sleep(seconds))
    replaced: list[Replaced] = [
        *more,
        (shoal.clock, "SystemClock", lambda: clock),
        (synchronous, "time", SimpleNamespace(perf_counter=world.now)),
        (pipelined, "time", SimpleNamespace(perf_counter=world.now)),
        (pipeline_step, "time", SimpleNamespace(perf_counter=world.now)),
        (messenger, "SystemClock", lambda: clock),
        (messenger, "wait", wait),
        (messenger, "await_any", await_any),
        (sys.modules[transfer.__module__], "await_any", await_any),
        (formation, "wait", wait),
        (formation, "connect", connect),
        (formation, "accept_any", lambda listeners, *rest: listeners[0].accept(*rest)),
        (reaching, "connect", connect),
        (reaching, "os", system),
        (reaching, "time", watch),
        (service_feed, "threading", threads),
        (coordinator_link, "Wakeup", SimulatedWakeup),
        (coordinator_link, "os", system),
        (coordinator_link, "select", SimpleNamespace(poll=_Poll, POLLIN=1)),
        (coordinator_link, "threading", threads),
        (coordinator_link, "time", watch),
        (coordinator_link, "resident_bytes", lambda: 0),
        (recorder, "time", SimpleNamespace(monotonic=world.now)),
        # What is counted for people, by which nobody decides anything.
        (Counters, "figures", lambda counters: _NO_FIGURES),
        (WorkerFigures, "since", lambda figures, earlier: _NO_FIGURES),
        (SystemFigures, "now", SystemFigures),
        (coordinator_link, "print", lambda *_, **__: None),
        (client, "threading", threads),
        (client, "time", watch),
        (server, "time", watch),
        (links, "os", system),
        (links, "threading", threads),
        (links, "time", watch),
        (links, "connect", connect),
        (store_layout, "SHARD_BYTES", 8),
        (links, "selectors", SimpleNamespace(DefaultSelector=_Selector, EVENT_READ=1, EVENT_WRITE=2)),
    ]
    missing = object()
    before = [(place, name, getattr(place, name, missing)) for place, name, _ in replaced]
    for place, name, stand_in in replaced:
        setattr(place, name, stand_in)
    try:
        yield
    finally:
        for place, name, original in before:
            if original is missing:
                delattr(place, name)
            else:
                setattr(place, name, original)
