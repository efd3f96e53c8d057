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
from functools import partial

import msgspec

from shoal.clock import Deadline
from shoal.cluster import stacks
from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.coordinator_link.beats import BeatMaker
from shoal.cluster.coordinator_link.heard import HeardSoFar, why_lost
from shoal.cluster.coordinator_link.last_words import failed
from shoal.cluster.coordinator_link.outbox import Outbox
from shoal.cluster.coordinator_link.reaching import PAUSE, CoordinatorWhereabouts, Reach, reach, reach_patiently
from shoal.cluster.coordinator_link.service_feed import ServiceFeed, ServiceReader
from shoal.cluster.evidence import resident_bytes
from shoal.cluster.exits import ORPHANED
from shoal.cluster.identity import Identity
from shoal.cluster.messages import (
    POST_LIMIT,
    RESULT_LIMIT,
    TEXT_LIMIT,
    Admit,
    Beat,
    Candidate,
    Caught,
    ClockTold,
    Complaint,
    CoordinatorEpoch,
    Decline,
    Done,
    Drain,
    End,
    Finished,
    Join,
    Leave,
    Post,
    Ready,
    ServiceMessage,
    SpansRecorded,
    StackRequest,
    StackTold,
    StoryTold,
    ViewChange,
    WorkDone,
)
from shoal.cluster.view import Member, View
from shoal.config import Deadlines
from shoal.errors import PeerClosed, PeerTimeout, RunEnded, UsageError, ViewChanged, WireError
from shoal.observe.recorder import Recorder
from shoal.observe.story import StoryKind
from shoal.wire.connection import Connection
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message
from shoal.wire.shortage import Shortage
from shoal.wire.wakeup import Wakeup

GRACE = 5.0  # seconds from the end of the run until such a worker is ended
_FLUSH = 2.0  # seconds that a worker's last words may take
_ASK_AGAIN = 1.0  # seconds that one attempt to reach it may take


class CoordinatorLink:
    """This member's place in the run, from `join` to `close`. All methods may be called from any thread.

    A process that is forked meanwhile lets go of it at once: no child keeps a dead worker's connection open.
    """

    def __init__(
        self,
        connection: Connection,
        member: Member,
        deadlines: Deadlines,
        recorder: Recorder | None = None,
        on_chief: Callable[[], None] = lambda: None,
        reconnect: Reach | None = None,
        upkeep: Callable[[], object] = lambda: None,
        clock_offset: ClockOffset | None = None,
        has_moved: Callable[[], bool] = lambda: False,
    ) -> None:
        self.wakeup = Wakeup()
        self.member = member
        self.recorder = recorder or Recorder()
        self._on_chief = on_chief
        self._reconnect = reconnect
        self._upkeep = upkeep
        self._clock_offset = clock_offset
        self._has_moved = has_moved
        self._patience = deadlines.orphaned
        self._connection = connection
        self._beat_every = deadlines.silence / 10
        self._beats = BeatMaker(self.recorder)
        self._joined: Join | None = None
        self._poke = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._leaving = threading.Event()
        self._changed = threading.Condition()  # guards the two that follow
        self._outbox = Outbox()
        self._heard = HeardSoFar()
        self._service_feed = ServiceFeed(lambda: (self.view, self._heard.why_over()))
        self._unheard: deque[Message] = deque()  # received, in order
        self._spare: Wakeup | None = None  # for the next view
        self._shortage = Shortage(f"{member.id} can't hear the coordinator")
        self._thread = threading.Thread(target=self._attend, name="shoal-coordinator-link", daemon=True)
        # Python remembers this for good: no more than a weak reference.
        os.register_at_fork(after_in_child=partial(_forget_in_child, weakref.ref(self)))

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

        whereabouts = CoordinatorWhereabouts(address, find)

        def connect(deadline: Deadline) -> Connection:
            return reach(whereabouts.look(deadline), key, deadlines.silence, deadline)

        soon = Deadline.after(deadlines.connect)
        connection = reach_patiently(connect, soon) if find else connect(soon)
        coordinator_link = cls(
            connection,
            member,
            deadlines,
            recorder,
            on_chief,
            connect if find else None,
            upkeep,
            clock_offset,
            whereabouts.have_changed,
        )
        coordinator_link._joined = Join(member, identity)
        coordinator_link._outbox.add(coordinator_link._joined)
        coordinator_link._thread.start()
        # The coordinator gives up first and knows who did not come; this is for when it says nothing.
        deadline = Deadline.after(deadlines.start + deadlines.silence)
        heard = coordinator_link._heard
        try:
            coordinator_link._wait(lambda: heard.newest is not None, deadline, "the first view did not come")
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
        self._send(failed(error, traceback, self.recorder.now, where, of_all), flush=True)

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
        self._service_feed.read_with(reader)

    def record(self, frame: bytes) -> bool:
        """Have this written into the run's record. False if what was given before is still on its way."""
        with self._changed:
            is_free = not self._outbox.has_spans
        if is_free:
            self._send(SpansRecorded(frame))
        return is_free

    def happened(self, kind: StoryKind, text: str, step: int | None = None) -> None:
        """Have this written into the run's story, which is on the coordinator's host."""
        self._send(StoryTold(kind, text[:TEXT_LIMIT], step))

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
        return self._heard.view

    def posted_before(self) -> tuple[str, ...]:
        """The names under which something had been posted when this worker, which came late, was let in. Told once."""
        with self._changed:
            return self._heard.posted_before()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Who could be let in, as last heard."""
        return self._heard.candidates

    @property
    def drain(self) -> str | None:
        """Why this worker should leave after its step, if it should."""
        return self._heard.drain

    @drain.setter
    def drain(self, why: str) -> None:
        self._heard.drain = why

    @property
    def save_now(self) -> bool:
        """Whether somebody has asked for a checkpoint; whoever begins one takes it back."""
        return self._heard.save_now

    @save_now.setter
    def save_now(self, asked: bool) -> None:
        self._heard.save_now = asked

    def stand(self) -> tuple[View, Wakeup]:
        """The newest view and its wakeup."""
        with self._changed:
            return self.view, self.wakeup

    def result(self, call: int) -> bytes | None:
        """What a call returned, or that it raised, if this member was told."""
        return self._heard.results.get(call)

    def forget_results(self, before: int) -> None:
        """Nobody asks any more for what calls before this one returned."""
        with self._changed:
            self._heard.forget_results(before)

    def wait_view(self, after: int, deadline: Deadline, otherwise: str) -> View:
        """A view with a higher number. PeerTimeout if none comes, RunEnded if the run ends."""
        self._wait(lambda: self.view.number > after, deadline, otherwise)
        return self.view

    def wait_change(self, after: int, candidates: tuple[Candidate, ...], seconds: float) -> None:
        """Until there is a newer view, other candidates, or the time is up. RunEnded if the run ends."""
        heard = self._heard
        with self._changed:
            self._changed.wait_for(
                lambda: heard.view.number > after or heard.candidates != candidates or heard.over is not None, seconds
            )
        if heard.over is not None:
            raise heard.over

    def wait_result_or_view(self, call: int, after: int) -> bytes | None:
        """What a call returned that is over for the others; None once there is a newer view than `after`.

        Has no deadline of its own: a fit may take days, and the coordinator watches the others.
        """
        heard = self._heard
        with self._changed:
            self._changed.wait_for(lambda: call in heard.results or heard.view.number > after or heard.is_over)
        if (why := heard.why_over()) is not None:
            raise why
        return heard.results.get(call)

    def wait_post(
        self, names: tuple[str, ...], deadline: Deadline, while_view: int | None = None, call: int | None = None
    ) -> tuple[str, bytes] | None:
        """The first of these names that something is posted under, and what.

        None once there is a newer view than `while_view`, or this call of the script is over for the others.
        PeerTimeout if nobody posts it, RunEnded if the run ends.
        """
        posts = self._heard.posts

        def posted() -> bool:
            return any(name in posts for name in names)

        def in_vain() -> bool:
            is_newer = while_view is not None and self.view.number > while_view
            return is_newer or (call is not None and self.view.call > call)

        self._wait(lambda: posted() or in_vain(), deadline, f"nobody posted {', '.join(names)}")
        return next(((name, posts[name]) for name in names if name in posts), None)

    def wait_end(self, after: int | None = None) -> bool:
        """True when every worker is done; False once there is a newer view than `after`; RunEnded if the run ends.

        Has no deadline of its own: the others may train for days, and the coordinator watches them.
        """
        heard = self._heard
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    heard.is_over or (after is not None and heard.newest is not None and heard.newest.number > after)
                )
            )
        if heard.over is not None:
            raise heard.over
        return heard.end is not None

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
        if self._heard.over is not None and not self._leaving.wait(GRACE):
            print(f"shoal: {self.member.id} is ended: {self._heard.over}", file=sys.stderr, flush=True)
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
                self._leaving.wait(PAUSE)
                continue
            self._connection.close()
            self._connection = connection
            with self._changed:
                self._outbox.begin_again(msgspec.structs.replace(self._joined, epoch=self._heard.epoch))
            return True
        return False

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._poke, select.POLLIN)
        next_beat = time.monotonic() + self._beat_every
        while not self._heard.is_over:
            self._empty_outbox()
            if self._leaving.is_set():
                return
            poll.poll(max(0.0, next_beat - time.monotonic()) * 1000)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._poke)
            if time.monotonic() >= next_beat:
                self._outbox.add(self._beat())
                try:
                    self._upkeep()
                except OSError as error:  # it can be left out for once
                    self._shortage.tell(error)
                next_beat = time.monotonic() + self._beat_every
                if self._has_moved():  # the old one's host may be gone without a word
                    raise PeerClosed("coordinator", "another coordinator was elected")
            while (message := self._connection.try_receive()) is not None:
                self._unheard.append(message)
                self._hear_all()
            self._hear_all()

    def _empty_outbox(self) -> None:
        while (message := self._outbox.first()) is not None:
            self._connection.send(message, deadline=Deadline.after(_FLUSH))
            with self._changed:
                self._outbox.sent()
                self._changed.notify_all()

    def _beat(self) -> Beat:
        now, memory = time.monotonic(), resident_bytes()
        asks = self._clock_offset.ask(time.monotonic()) if self._clock_offset is not None else None
        return self._beats.make(now, memory, asks)

    def _hear_all(self) -> None:
        """In their order. A view for which there is no wakeup waits, with all that came after it, for the next beat."""
        while self._unheard and self._can_hear(self._unheard[0]):
            self._hear(self._unheard.popleft())

    def _can_hear(self, message: Message) -> bool:
        return self._heard.newest is None or not isinstance(message, ViewChange) or self._has_spare()

    def _has_spare(self) -> bool:
        if self._spare is None:
            try:
                self._spare = Wakeup()
            except OSError as error:
                self._shortage.tell(error)
        return self._spare is not None

    def _hear(self, message: Message) -> None:
        if isinstance(message, ViewChange) and message.view.chief.id == self.member.id:
            self._on_chief()  # before anybody can see the view
        if isinstance(message, CoordinatorEpoch) and message.epoch < self._heard.epoch:
            raise PeerClosed("coordinator", "it was elected in an earlier epoch than the one before it")
        with self._changed:
            if isinstance(message, ViewChange):
                self._take_view(message.view)
            else:
                self._heard.take(message)
            self._changed.notify_all()
        match message:
            case ServiceMessage(content):
                self._service_feed.leave(content)
            case ViewChange():
                self._service_feed.leave(self.view)
            case ClockTold(asked, told, machine) if self._clock_offset is not None:
                self._clock_offset.hear(asked, told, machine, time.monotonic())
            case Drain(why) if not self.view.has(self.member.id):
                self._connection.send(Leave(), deadline=Deadline.after(_FLUSH))  # it holds nothing that others need
                self._lose(RunEnded(f"it has left the run: {why}"))
            case End(ok=True):
                self.wakeup.set(RunEnded(message.reason))
                self._service_feed.leave(RunEnded(message.reason))
            case StackRequest():
                self._send(StackTold(stacks.of_this_process()[:TEXT_LIMIT]))
            case _ if (why_over := why_lost(message)) is not None:
                self._lose(why_over)

    def _take_view(self, view: View) -> None:
        if not self._heard.is_newer(view):
            return
        if self._heard.newest is not None:
            self.wakeup.set(ViewChanged(view.number))
            assert self._spare is not None, "looked for before"
            self.wakeup, self._spare = self._spare, None
        self._heard.take_view(view, self.member.id)

    def _lose(self, why: BaseException) -> None:
        """The run is over for this member: wake whoever waits. What was heard first explains what follows."""
        with self._changed:
            if self._heard.is_over:
                return
            self._heard.over = why
            self._changed.notify_all()
        self.wakeup.set(why)
        self._service_feed.leave(why)

    # Between the two --------------------------------------------------------------------------------

    def _send(self, message: Message, flush: bool = False) -> None:
        with self._changed:
            if self._leaving.is_set() or self._heard.is_over:
                return
            self._outbox.add(message)
            os.eventfd_write(self._poke, 1)
            if flush:
                # After the end the thread sends nothing any more: who finishes at that moment must not wait for it.
                self._changed.wait_for(lambda: self._outbox.is_empty or self._heard.is_over, _FLUSH)

    def _wait(self, heard: Callable[[], bool], deadline: Deadline, otherwise: str) -> None:
        """Wait until it was heard, or this member no longer counts."""
        begun = deadline.clock.now()
        with self._changed:
            self._changed.wait_for(lambda: heard() or self._heard.is_over, deadline.left())
            if heard():
                return
        if (why := self._heard.why_over()) is not None:
            raise why
        waited = deadline.clock.now() - begun
        raise PeerTimeout(("coordinator",), f"{otherwise} within {waited:.1f} s")

    def _let_go(self) -> None:
        """In a forked child: or the child would keep a dead worker's connection open."""
        self._leaving.set()
        self._connection.close()


def _forget_in_child(reference: weakref.ref[CoordinatorLink]) -> None:
    if (coordinator_link := reference()) is not None:
        coordinator_link._let_go()
