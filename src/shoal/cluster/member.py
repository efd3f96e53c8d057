"""A worker's seat in the run: one thread that sends its beats and hears the coordinator.

The thread owns the connection; the other threads leave messages in an outbox and read what was heard. Every view has
a `wakeup` of its own, on which all waits of the data plane in that view end: with ViewChanged when a newer one comes,
with RunEnded when the run ends badly or the coordinator is gone. A main thread that does not look (it computes, or
hangs) is given a few seconds; then the process ends: no worker outlives its run.

When the coordinator dies, training goes on. The seat looks for the one that is started in its place, joins again and
repeats what the old one may not have heard.
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
from dataclasses import dataclass
from typing import Protocol

from shoal.clock import Deadline
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
    Complaint,
    Decline,
    Done,
    Drain,
    End,
    Failed,
    Finished,
    Join,
    Leave,
    Letter,
    Post,
    Ready,
    Reason,
    Refuse,
    ViewChange,
)
from shoal.cluster.view import Member, View
from shoal.config import Deadlines
from shoal.errors import CutOff, PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, ViewChanged, WireError
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.messages import Message
from shoal.wire.slate import Slate
from shoal.wire.wakeup import Wakeup

ORPHANED = 70  # the exit code of a worker that was ended because its run was over
GRACE = 5.0  # seconds from the end of the run until such a worker is ended
_FLUSH = 2.0  # seconds that a worker's last words may take
_REPEATED = 64  # messages that a new coordinator is told again
_ASK_AGAIN = 1.0  # seconds that one attempt to reach it may take
_PAUSE = 0.02
_RATE_WINDOW = 10  # beats over which samples per second are averaged


@dataclass(frozen=True, slots=True)
class _Occupation:
    """What the worker does, as it last said."""

    step: int
    doing: str
    exchanging: bool
    since: float


class Reader(Protocol):
    """Who reads the letters of the coordinator's department. Called by the seat's thread: it must not wait."""

    def read(self, content: bytes) -> None: ...

    def over(self, why: BaseException) -> None:
        """The run is over for this member: there will be no more letters."""


class Seat:
    """This member's place in the run, from `join` to `close`. All methods may be called from any thread."""

    def __init__(
        self,
        connection: Connection,
        member: Member,
        deadlines: Deadlines,
        slate: Slate | None = None,
        on_chief: Callable[[], None] = lambda: None,
        reconnect: Callable[[Deadline], Connection] | None = None,
    ) -> None:
        self.wakeup = Wakeup()
        self.member = member
        self._slate = slate
        self._on_chief = on_chief
        self._reconnect = reconnect
        self._patience = deadlines.connect
        self._said: deque[Message] = deque(maxlen=_REPEATED)  # for a coordinator that has heard nothing yet
        self._connection = connection
        self._beat_every = deadlines.silence / 10
        self._occupation = _Occupation(0, "starting", False, time.monotonic())
        self._samples = 0
        self._history: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW + 1)
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
        self._letters: list[bytes] = []  # for a reader that has not come yet
        self._reader: Reader | None = None
        self._end: End | None = None
        self._over: BaseException | None = None  # why this seat no longer counts
        self._thread = threading.Thread(target=self._attend, name="shoal-seat", daemon=True)
        _seats.add(self)

    @classmethod
    def join(
        cls,
        address: str,
        key: RunKey,
        member: Member,
        identity: Identity,
        deadlines: Deadlines,
        slate: Slate | None = None,
        on_chief: Callable[[], None] = lambda: None,
        find: Callable[[Deadline], str] | None = None,
    ) -> Seat:
        """Take the seat; returns once everyone has joined and view 1 is known.

        Refused if the coordinator does not want this member, RunEnded if the run is over before it began. `find` tells
        where a coordinator is that was started in the place of one that died.
        """

        def reach(deadline: Deadline) -> Connection:
            connection = connect(find(deadline) if find else address, key, FROM_COORDINATOR, deadline)
            connection.peer = "coordinator"
            connection.give_up_after(deadlines.silence)
            return connection

        soon = Deadline.after(deadlines.connect)
        connection = _patiently(reach, soon) if find else reach(soon)
        seat = cls(connection, member, deadlines, slate, on_chief, reach if find else None)
        seat._joined = Join(member, identity)
        seat._outbox.append(seat._joined)
        seat._thread.start()
        # The coordinator gives up first and knows who did not come; this is for when it says nothing.
        deadline = Deadline.after(deadlines.start + deadlines.silence)
        try:
            seat._wait(lambda: seat._view is not None, deadline, "the first view did not come")
        except BaseException:
            seat.close()
            raise
        return seat

    # What the worker says ---------------------------------------------------------------------------

    def say(self, step: int, doing: str, samples: int = 0, exchanging: bool = False) -> None:
        """Remember where the worker is and how many samples it has finished since it last said so.

        Costs next to nothing: the slate has it at once, the next beat carries it. `exchanging`: it can't go on
        unless every worker comes.
        """
        self._samples += samples
        self._occupation = _Occupation(step, doing, exchanging, time.monotonic())
        if self._slate is not None:
            self._slate.write(step, doing)

    def post(self, name: str, value: bytes) -> None:
        """Give every member, this one included, a small named value. A later one replaces an earlier."""
        if len(value) > POST_LIMIT:
            raise UsageError(f"a post holds {POST_LIMIT} bytes at most; {name!r} has {len(value)}")
        self._send(Post(name, value))

    def fail(self, error: BaseException, traceback: str, of_all: bool = False) -> None:
        """Say that the script ended with this error. Returns when it is said (or nobody listens).

        `of_all`: the workers have found it together, so the run is over.
        """
        occupation = self._occupation
        self._send(
            Failed(
                step=occupation.step,
                doing=occupation.doing,
                kind=type(error).__name__,
                error=str(error)[:TEXT_LIMIT],
                traceback=traceback[-TEXT_LIMIT:],
                blames=_blamed(error),
                code=exit_code(error),
                of_all=of_all,
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

    def complain(self, view: int, about: tuple[str, ...], why: str) -> None:
        """Say that these can't be reached in this view."""
        self._send(Complaint(view, about, why[:TEXT_LIMIT]))

    def finished(self, call: int, result: bytes) -> None:
        """Keep what a call of the script returned, for those who come late."""
        if len(result) > RESULT_LIMIT:
            raise UsageError(f"{RESULT_LIMIT} bytes of a result are kept at most; call {call} returned {len(result)}")
        self._send(Finished(call, result))

    def write(self, content: bytes) -> None:
        """Send a letter to the coordinator's department."""
        self._send(Letter(content))

    def read_with(self, reader: Reader | None) -> None:
        """From now on this one reads the letters; first those that came when nobody did. None: nobody does again."""
        with self._changed:
            self._reader = reader
            if reader is not None:
                letters, self._letters = self._letters, []
                for letter in letters:
                    reader.read(letter)
                if self._over is not None:
                    reader.over(self._over)

    def leave(self) -> None:
        """Give up the place in the view, between two steps. Returns when it is said."""
        self._send(Leave(), flush=True)

    def done(self) -> None:
        """Say that the script has finished. Returns when it is said (or nobody listens)."""
        self._send(Done(self._occupation.step), flush=True)

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
        self, names: tuple[str, ...], deadline: Deadline, while_chief: str | None = None
    ) -> tuple[str, bytes] | None:
        """The first of these names that something is posted under, and what. None once another than `while_chief` is.

        PeerTimeout if nobody posts it, RunEnded if the run ends.
        """

        def posted() -> bool:
            return any(name in self._posts for name in names)

        def deposed() -> bool:
            return while_chief is not None and self.view.chief.id != while_chief

        self._wait(lambda: posted() or deposed(), deadline, f"nobody posted {', '.join(names)}")
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
        """Give the seat up. Calling it again does nothing."""
        if not self._leaving.is_set():
            self._leaving.set()
            os.eventfd_write(self._poke, 1)
            self._thread.join()
            self._connection.close()
            self.wakeup.close()
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
            except WireError:
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
                next_beat = time.monotonic() + self._beat_every
            while (message := self._connection.try_receive()) is not None:
                self._hear(message)

    def _empty_outbox(self) -> None:
        while self._outbox:
            message = self._outbox[0]
            self._connection.send(message, deadline=Deadline.after(_FLUSH))
            with self._changed:
                self._outbox.popleft()
                if not isinstance(message, Beat | Join) and message not in self._said:
                    self._said.append(message)
                self._changed.notify_all()

    def _hear(self, message: Message) -> None:
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
                case Post(name, value):
                    self._posts[name] = value
                case Letter(content):
                    (self._letters.append if self._reader is None else self._reader.read)(content)
                case End(ok=True):
                    self._end = message
                case _:
                    pass
            self._changed.notify_all()
        match message:
            case Drain(why) if not self.view.has(self.member.id):
                self._connection.send(Leave(), deadline=Deadline.after(_FLUSH))  # it holds nothing that others need
                self._lose(RunEnded(f"it has left the run: {why}"))
            case End(ok=True):
                self.wakeup.set(RunEnded(message.reason))
            case End(ok=False):
                self._lose(RunEnded(message.reason))
            case Refuse(Reason.OVER, text):
                self._lose(RunEnded(text))
            case Refuse(Reason.OUTSIDE, text):
                self._lose(CutOff(f"the run went on without this worker: {text}"))
            case Refuse(reason, text):
                self._lose(Refused(reason.value, text))
            case _:
                pass

    def _take_view(self, view: View) -> None:
        if self._view is not None and view.number <= self._view.number:
            return  # told again, by a coordinator that has just come
        if self._view is not None:
            if view.has(self.member.id) and not self._view.has(self.member.id):
                self._posted_before = tuple(self._posts)
            self.wakeup.set(ViewChanged(view.number))
            self.wakeup = Wakeup()
        self._view = view
        if view.chief.id == self.member.id:
            self._on_chief()

    def _lose(self, why: BaseException) -> None:
        """The run is over for this member: wake whoever waits. What was heard first explains what follows."""
        with self._changed:
            if self._end is not None or self._over is not None:
                return
            self._over = why
            self._changed.notify_all()
            if self._reader is not None:
                self._reader.over(why)
        self.wakeup.set(why)

    def _beat(self) -> Beat:
        occupation, now = self._occupation, time.monotonic()
        self._history.append((now, self._samples))
        began, samples = self._history[0]
        rate = (self._samples - samples) / (now - began) if now > began else 0.0
        return Beat(occupation.step, occupation.doing, now - occupation.since, rate, occupation.exchanging)

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
        """Wait until it was heard or the seat no longer counts."""
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


_seats: weakref.WeakSet[Seat] = weakref.WeakSet()


def _forget_seats() -> None:
    for seat in list(_seats):
        seat._forget()


os.register_at_fork(after_in_child=_forget_seats)


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


def _blamed(error: BaseException) -> tuple[str, ...]:
    """Whose absence the error, or what caused it, speaks of."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PeerClosed):
            return (cause.peer,)
        if isinstance(cause, PeerTimeout):
            return cause.missing
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ()


def exit_code(error: BaseException) -> int:
    """What Python would exit with."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    return 1
