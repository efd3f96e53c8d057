"""A member's link to the coordinator: one thread that sends its beats and hears the coordinator.

The thread owns the connection; the other threads leave messages in an outbox and read what was heard. Every view has
a `wakeup` of its own, on which all waits of the data plane in that view end: with ViewChanged when a newer one comes,
with RunEnded when the run ends badly or the coordinator is gone. A main thread that does not look (it computes, or
hangs) is given a few seconds; then the process ends: no worker outlives its run.

When the coordinator dies, training goes on. The link looks for the coordinator that is started in its place, joins
again and repeats what the old one may not have heard.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shoal.clock import Deadline
from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.evidence import resident_bytes
from shoal.cluster.exits import ORPHANED, exit_code
from shoal.cluster.identity import Identity
from shoal.cluster.messages import (
    FROM_COORDINATOR,
    POST_LIMIT,
    RESULT_LIMIT,
    TEXT_LIMIT,
    Admit,
    Beat,
    Candidate,
    Candidates,
    Caught,
    ClockTold,
    Complaint,
    Decline,
    Done,
    Drain,
    End,
    Failed,
    Finished,
    Join,
    Leave,
    Post,
    Ready,
    RefusalReason,
    Refuse,
    SaveNow,
    ServiceMessage,
    SpansRecorded,
    ViewChange,
    WorkDone,
)
from shoal.cluster.view import Member, View
from shoal.config import Deadlines
from shoal.errors import CutOff, PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, ViewChanged, WireError
from shoal.observe.chart import shown
from shoal.observe.recorder import Recorder
from shoal.observe.time_shares import TimeShares
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message
from shoal.wire.shortage import Shortage
from shoal.wire.wakeup import Wakeup

GRACE = 5.0  # seconds from the end of the run until such a worker is ended
_FLUSH = 2.0  # seconds that a worker's last words may take
_REPEATED = 64  # messages that a new coordinator is told again
_ASK_AGAIN = 1.0  # seconds that one attempt to reach it may take
_PAUSE = 0.02
_RATE_WINDOW = 10  # beats over which samples per second and shares of time are averaged


class ServiceReader(Protocol):
    """Who reads what the coordinator's service says. Called by the link's thread: it must not wait.

    It may hold locks of its own when it calls the link, and take them when it is called: the link holds none then that
    its other methods need.
    """

    def read(self, content: bytes) -> None: ...

    def take(self, view: View) -> None:
        """There is a new view, or this one is the newest when the reader comes."""

    def over(self, why: BaseException) -> None:
        """The run is over for this member: the service says nothing more."""


class CoordinatorLink:
    """This member's place in the run, from `join` to `close`. All methods may be called from any thread."""

    def __init__(
        self,
        connection: Connection,
        member: Member,
        deadlines: Deadlines,
        recorder: Recorder | None = None,
        on_chief: Callable[[], None] = lambda: None,
        reconnect: Callable[[Deadline], Connection] | None = None,
        upkeep: Callable[[], object] = lambda: None,
        clock_offset: ClockOffset | None = None,
    ) -> None:
        self.wakeup = Wakeup()
        self.member = member
        self.recorder = recorder or Recorder()
        self._on_chief = on_chief
        self._reconnect = reconnect
        self._upkeep = upkeep
        self._clock_offset = clock_offset
        self._patience = deadlines.connect
        self._said: deque[Message] = deque(maxlen=_REPEATED)  # for a coordinator that has heard nothing yet
        self._connection = connection
        self._beat_every = deadlines.silence / 10
        self._history: deque[tuple[float, int, TimeShares]] = deque(maxlen=_RATE_WINDOW + 1)
        self._joined: Join | None = None
        self._outbox: deque[Message] = deque()
        self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._leaving = threading.Event()
        self._changed = threading.Condition()  # guards what was heard
        self._view: View | None = None
        self._posts: dict[str, bytes] = {}
        self._posted_before: tuple[str, ...] = ()
        self._results: dict[int, bytes] = {}
        self._candidates: tuple[Candidate, ...] = ()
        self._drain: str | None = None
        self.save_now = False  # somebody has asked for a checkpoint; whoever begins one takes it back
        self._reading = threading.Lock()  # guards the two that follow, and the order of what the reader is told
        self._unread: list[bytes] = []  # for a reader that has not come yet
        self._reader: ServiceReader | None = None
        self._end: End | None = None
        self._over: BaseException | None = None  # why this member no longer counts
        self._unheard: deque[Message] = deque()  # received, in order
        self._spare: Wakeup | None = None  # for the next view
        self._shortage = Shortage(f"{member.id} can't hear the coordinator")
        self._thread = threading.Thread(target=self._attend, name="shoal-coordinator-link", daemon=True)
        _coordinator_links.add(self)

    @classmethod
    def join(
        cls,
        address: str,
        key: RunKey,
        member: Member,
        identity: Identity,
        deadlines: Deadlines,
        recorder: Recorder | None = None,
        on_chief: Callable[[], None] = lambda: None,
        find: Callable[[Deadline], str] | None = None,
        upkeep: Callable[[], object] = lambda: None,
        clock_offset: ClockOffset | None = None,
    ) -> CoordinatorLink:
        """Join the run; returns once everyone has joined and view 1 is known.

        Refused if the coordinator does not want this member, RunEnded if the run is over before it began. `find` tells
        where a coordinator is that was started in the place of one that died. `upkeep` is called now and then by the
        link's thread; it must not wait. `clock_offset` learns how far the coordinator's clock is ahead.
        """

        def reach(deadline: Deadline) -> Connection:
            connection = connect(find(deadline) if find else address, key, FROM_COORDINATOR, deadline)
            connection.peer = "coordinator"
            connection.give_up_after(deadlines.silence)
            return connection

        soon = Deadline.after(deadlines.connect)
        connection = _patiently(reach, soon) if find else reach(soon)
        coordinator_link = cls(
            connection, member, deadlines, recorder, on_chief, reach if find else None, upkeep, clock_offset
        )
        coordinator_link._joined = Join(member, identity)
        coordinator_link._outbox.append(coordinator_link._joined)
        coordinator_link._thread.start()
        # The coordinator gives up first and knows who did not come; this is for when it says nothing.
        deadline = Deadline.after(deadlines.start + deadlines.silence)
        try:
            coordinator_link._wait(lambda: coordinator_link._view is not None, deadline, "the first view did not come")
        except BaseException:
            coordinator_link.close()
            raise
        return coordinator_link

    # What the worker says ---------------------------------------------------------------------------

    def post(self, name: str, value: bytes) -> None:
        """Give every member, this one included, a small named value. A later one replaces an earlier."""
        if len(value) > POST_LIMIT:
            raise UsageError(f"a post holds {POST_LIMIT} bytes at most; {name!r} has {len(value)}")
        self._send(Post(name, value))

    def fail(self, error: BaseException, traceback: str, where: str = "", of_all: bool = False) -> None:
        """Say that the script ended with this error. Returns when it is said (or nobody listens).

        `where`: the line of the script at which Shoal refused something. `of_all`: the workers have found it together,
        so the run is over.
        """
        now = self.recorder.now
        blames, late = _blamed(error)
        self._send(
            Failed(
                step=now.step,
                doing=now.activity,
                kind=type(error).__name__,
                error=str(error)[:TEXT_LIMIT],
                traceback=traceback[-TEXT_LIMIT:],
                blames=blames,
                late=late,
                code=exit_code(error),
                of_all=of_all,
                where=where,
            ),
            flush=True,
        )

    def ready(self, call: int) -> None:
        """Say that this worker, which came late, could take part in the script's `call`-th call."""
        self._send(Ready(call))

    def admit(self, view: int, candidates: tuple[str, ...]) -> None:
        """Say that the members of the view let these in now."""
        self._send(Admit(view, candidates))

    def decline(self, view: int, newcomers: tuple[str, ...]) -> None:
        """Say that these came into the view at a moment when nobody can tell them where things stand."""
        self._send(Decline(view, newcomers))

    def complain(self, view: int, about: tuple[str, ...], why: str, late: bool) -> None:
        """Say that these can't be reached in this view; `late`: that they did not come within the deadline."""
        self._send(Complaint(view, about, why[:TEXT_LIMIT], late))

    def finished(self, call: int, result: bytes) -> None:
        """Keep what a call of the script returned, for those who come late."""
        if len(result) > RESULT_LIMIT:
            raise UsageError(f"{RESULT_LIMIT} bytes of a result are kept at most; call {call} returned {len(result)}")
        self._send(Finished(call, result))

    def caught(self, call: int, next: int, outcome: bytes, deadline: Deadline) -> int:
        """Say that the script has caught what a call raised. Returns when that is over for all: their next call."""
        if self.view.call <= call:
            self._send(Caught(call, next, outcome))
        self._wait(lambda: self.view.call > call, deadline, f"the others did not hear that call {call} is over")
        return self.view.call

    def write(self, content: bytes) -> None:
        """Say something to the coordinator's service."""
        self._send(ServiceMessage(content))

    def read_with(self, reader: ServiceReader | None) -> None:
        """From now on this one reads what the service says, first what came before. None: nobody does again."""
        with self._reading:
            self._reader = reader
            if reader is not None:
                unread, self._unread = self._unread, []
                reader.take(self.view)
                for content in unread:
                    reader.read(content)
                if self._over is not None:
                    reader.over(self._over)

    def record(self, frame: bytes) -> bool:
        """Have this written into the run's record. False if what was given before is still on its way."""
        with self._changed:
            is_free = not any(isinstance(message, SpansRecorded) for message in tuple(self._outbox))
        if is_free:
            self._send(SpansRecorded(frame))
        return is_free

    def leave(self) -> None:
        """Give up the place in the view, between two steps. Returns when it is said."""
        self._send(Leave(), flush=True)

    def done(self, work: WorkDone = WorkDone()) -> None:  # noqa: B008
        """Say that the script has finished. Returns when it is said (or nobody listens)."""
        self._send(Done(self.recorder.now.step, work), flush=True)

    # What the worker hears --------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The newest view."""
        if self._view is None:
            raise UsageError("this member has not joined a run yet")
        return self._view

    def posted_before(self) -> tuple[str, ...]:
        """The names under which something had been posted when this worker, which came late, was let in. Told once."""
        with self._changed:
            names, self._posted_before = self._posted_before, ()
        return names

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Who could be let in, as last heard."""
        return self._candidates

    @property
    def drain(self) -> str | None:
        """Why this worker should leave after its step, if it should."""
        return self._drain

    @drain.setter
    def drain(self, why: str) -> None:
        self._drain = why

    def stand(self) -> tuple[View, Wakeup]:
        """The newest view and its wakeup."""
        with self._changed:
            return self.view, self.wakeup

    def result(self, call: int) -> bytes | None:
        """What a call returned, or that it raised, if this member was told."""
        return self._results.get(call)

    def wait_view(self, after: int, deadline: Deadline, otherwise: str) -> View:
        """A view with a higher number. PeerTimeout if none comes, RunEnded if the run ends."""
        self._wait(lambda: self.view.number > after, deadline, otherwise)
        return self.view

    def wait_change(self, after: int, candidates: tuple[Candidate, ...], seconds: float) -> None:
        """Until there is a newer view, other candidates, or the time is up. RunEnded if the run ends."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.view.number > after or self._candidates != candidates or self._over is not None, seconds
            )
        if self._over is not None:
            raise self._over

    def wait_result_or_view(self, call: int, after: int) -> bytes | None:
        """What a call returned that is over for the others; None once there is a newer view than `after`.

        Has no deadline of its own: a fit may take days, and the coordinator watches the others.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: call in self._results or self.view.number > after or self._end is not None or self._over
            )
        if self._over is not None:
            raise self._over
        if self._end is not None:
            raise RunEnded(self._end.reason)
        return self._results.get(call)

    def wait_post(
        self, names: tuple[str, ...], deadline: Deadline, while_view: int | None = None, call: int | None = None
    ) -> tuple[str, bytes] | None:
        """The first of these names that something is posted under, and what.

        None once there is a newer view than `while_view`, or this call of the script is over for the others.
        PeerTimeout if nobody posts it, RunEnded if the run ends.
        """

        def posted() -> bool:
            return any(name in self._posts for name in names)

        def in_vain() -> bool:
            is_newer = while_view is not None and self.view.number > while_view
            return is_newer or (call is not None and self.view.call > call)

        self._wait(lambda: posted() or in_vain(), deadline, f"nobody posted {', '.join(names)}")
        return next(((name, self._posts[name]) for name in names if name in self._posts), None)

    def wait_end(self, after: int | None = None) -> bool:
        """True when every worker is done; False once there is a newer view than `after`; RunEnded if the run ends.

        Has no deadline of its own: the others may train for days, and the coordinator watches them.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._end is not None
                    or self._over is not None
                    or (after is not None and self._view is not None and self._view.number > after)
                )
            )
        if self._over is not None:
            raise self._over
        return self._end is not None

    def close(self) -> None:
        """Let go of the coordinator. Calling it again does nothing."""
        if not self._leaving.is_set():
            self._leaving.set()
            os.eventfd_write(self._poke, 1)
            self._thread.join()
            self._connection.close()
            self.wakeup.close()
            if self._spare is not None:
                self._spare.close()
            os.close(self._poke)

    # The thread -------------------------------------------------------------------------------------

    def _attend(self) -> None:
        while True:
            try:
                self._serve()
                break
            except WireError as error:
                if not self._find_again():
                    self._lose(RunEnded(f"the coordinator is gone: {error}"))
                    break
        if self._over is not None and not self._leaving.wait(GRACE):
            print(f"shoal: {self.member.id} is ended: {self._over}", file=sys.stderr, flush=True)
            os._exit(ORPHANED)

    def _find_again(self) -> bool:
        """The coordinator died. If one comes in its place within the deadline, join it; training goes on meanwhile."""
        if self._reconnect is None or self._joined is None:
            return False
        deadline, launcher = Deadline.after(self._patience), os.getppid()
        while not deadline.passed() and not self._leaving.is_set() and os.getppid() == launcher:
            try:
                connection = self._reconnect(Deadline.after(min(_ASK_AGAIN, deadline.left())))
            except (WireError, OSError) as error:
                self._shortage.tell(error)
                self._leaving.wait(_PAUSE)
                continue
            self._connection.close()
            self._connection = connection
            with self._changed:
                self._outbox.extendleft(reversed([self._joined, *self._said]))
            return True
        return False

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._poke, select.POLLIN)
        next_beat = time.monotonic() + self._beat_every
        while self._end is None and self._over is None:
            self._empty_outbox()
            if self._leaving.is_set():
                return
            poll.poll(max(0.0, next_beat - time.monotonic()) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._poke)
            if time.monotonic() >= next_beat:
                self._outbox.append(self._beat())
                try:
                    self._upkeep()
                except OSError as error:  # it can be left out for once
                    self._shortage.tell(error)
                next_beat = time.monotonic() + self._beat_every
            while (message := self._connection.try_receive()) is not None:
                self._unheard.append(message)
                self._hear_all()
            self._hear_all()

    def _hear_all(self) -> None:
        """In their order. A view for which there is no wakeup waits, with all that came after it, for the next beat."""
        while self._unheard and self._can_hear(self._unheard[0]):
            self._hear(self._unheard.popleft())

    def _can_hear(self, message: Message) -> bool:
        return self._view is None or not isinstance(message, ViewChange) or self._has_spare()

    def _has_spare(self) -> bool:
        if self._spare is None:
            try:
                self._spare = Wakeup()
            except OSError as error:
                self._shortage.tell(error)
        return self._spare is not None

    def _empty_outbox(self) -> None:
        while self._outbox:
            message = self._outbox[0]
            self._connection.send(message, deadline=Deadline.after(_FLUSH))
            with self._changed:
                self._outbox.popleft()
                if not isinstance(message, Beat | Join | SpansRecorded) and message not in self._said:
                    self._said.append(message)
                self._changed.notify_all()

    def _hear(self, message: Message) -> None:
        if isinstance(message, ViewChange) and message.view.chief.id == self.member.id:
            self._on_chief()  # before anybody can see the view
        with self._changed:
            match message:
                case ViewChange(view):
                    self._take_view(view)
                case Candidates(who):
                    self._candidates = who
                case Finished(call, result):
                    self._results[call] = result
                case Drain(why):
                    self._drain = why
                case SaveNow():
                    self.save_now = True
                case Post(name, value):
                    self._posts[name] = value
                case End(ok=True):
                    self._end = message
                case _:
                    pass
            self._changed.notify_all()
        self._tell_reader(message)
        match message:
            case ClockTold(asked, told, machine) if self._clock_offset is not None:
                self._clock_offset.hear(asked, told, machine, time.monotonic())
            case Drain(why) if not self.view.has(self.member.id):
                self._connection.send(Leave(), deadline=Deadline.after(_FLUSH))  # it holds nothing that others need
                self._lose(RunEnded(f"it has left the run: {why}"))
            case End(ok=True):
                self.wakeup.set(RunEnded(message.reason))
            case End(ok=False):
                self._lose(RunEnded(message.reason))
            case Refuse(RefusalReason.OVER, text):
                self._lose(RunEnded(text))
            case Refuse(RefusalReason.OUTSIDE, text):
                self._lose(CutOff(f"the run went on without this worker: {text}"))
            case Refuse(reason, text):
                self._lose(Refused(reason.value, text))
            case _:
                pass

    def _tell_reader(self, message: Message) -> None:
        with self._reading:
            match message:
                case ServiceMessage(content):
                    (self._unread.append if self._reader is None else self._reader.read)(content)
                case ViewChange() if self._reader is not None:
                    self._reader.take(self.view)

    def _take_view(self, view: View) -> None:
        if self._view is not None and view.number <= self._view.number:
            return  # told again, by a coordinator that has just come
        if self._view is not None:
            if view.has(self.member.id) and not self._view.has(self.member.id):
                self._posted_before = tuple(self._posts)
            self.wakeup.set(ViewChanged(view.number))
            assert self._spare is not None, "looked for before"
            self.wakeup, self._spare = self._spare, None
        self._view = view

    def _lose(self, why: BaseException) -> None:
        """The run is over for this member: wake whoever waits. What was heard first explains what follows."""
        with self._changed:
            if self._end is not None or self._over is not None:
                return
            self._over = why
            self._changed.notify_all()
        self.wakeup.set(why)
        with self._reading:
            if self._reader is not None:
                self._reader.over(why)

    def _beat(self) -> Beat:
        step, activity, exchanging, since = self.recorder.now
        now, trained = time.monotonic(), self.recorder.samples
        spent = self.recorder.shares()
        self._history.append((now, trained, spent))
        began, samples, before = self._history[0]
        rate = (trained - samples) / (now - began) if now > began else 0.0
        lately, memory = spent.since(before), resident_bytes()
        asks = self._clock_offset.ask(time.monotonic()) if self._clock_offset is not None else None
        logs = shown(self.recorder.logs)
        return Beat(step, activity, now - since, rate, exchanging, self.recorder.pieces, lately, memory, asks, logs)

    # Between the two --------------------------------------------------------------------------------

    def _send(self, message: Message, flush: bool = False) -> None:
        with self._changed:
            if self._leaving.is_set() or self._over is not None or self._end is not None:
                return
            self._outbox.append(message)
            os.eventfd_write(self._poke, 1)
            if flush:
                self._changed.wait_for(lambda: not self._outbox or self._over is not None, _FLUSH)

    def _wait(self, heard: Callable[[], bool], deadline: Deadline, otherwise: str) -> None:
        """Wait until it was heard, or this member no longer counts."""
        begun = deadline.clock.now()
        with self._changed:
            self._changed.wait_for(lambda: heard() or self._over is not None or self._end is not None, deadline.left())
            if heard():
                return
        if self._over is not None:
            raise self._over
        if self._end is not None:
            raise RunEnded(self._end.reason)
        waited = deadline.clock.now() - begun
        raise PeerTimeout(("coordinator",), f"{otherwise} within {waited:.1f} s")

    def _forget(self) -> None:
        """In a forked child: let go, or the child would keep a dead worker's connection open."""
        self._leaving.set()
        self._connection.close()


_coordinator_links: weakref.WeakSet[CoordinatorLink] = weakref.WeakSet()


def _forget_coordinator_links() -> None:
    for coordinator_link in list(_coordinator_links):
        coordinator_link._forget()


os.register_at_fork(after_in_child=_forget_coordinator_links)


def _patiently(reach: Callable[[Deadline], Connection], deadline: Deadline) -> Connection:
    """For one who comes when the coordinator has just died: another is started in its place."""
    launcher = os.getppid()
    while True:
        try:
            return reach(deadline)
        except PeerClosed:
            if deadline.passed() or os.getppid() != launcher:
                raise
            time.sleep(_PAUSE)


def _blamed(error: BaseException) -> tuple[tuple[str, ...], bool]:
    """Whose absence the error, or what caused it, speaks of; and whether they did not come within the deadline."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PeerClosed):
            return (cause.peer,), False
        if isinstance(cause, PeerTimeout):
            return cause.missing, True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return (), False
