"""A host's vote in the election of coordinators, and its copy of the record: one thread around `Voter`.

The launcher has one, and so has every agent that it has started. Whoever made it takes its orders, and starts or stops
the coordinator of this host; the rest it does itself: it follows the coordinator, wherever that is, answers the other
hosts, and tells the workers of this host, by a file, where the coordinator is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from shoal.clock import Deadline
from shoal.cluster import coordinator_address
from shoal.cluster.call_results import CallResults
from shoal.cluster.evidence import this_place
from shoal.cluster.messages import FROM_COORDINATOR
from shoal.cluster.succession.election import (
    AskForVotes,
    AskWhetherDead,
    ElectionAct,
    FollowCoordinator,
    StartCoordinator,
    StopCoordinator,
    Voter,
)
from shoal.cluster.succession.electorate import Electorate
from shoal.cluster.succession.succession_messages import (
    BETWEEN_HOSTS,
    CoordinatorAt,
    Follow,
    Heeded,
    HostSeat,
    LauncherGone,
    RecordEntry,
    RecordKept,
    StillCoordinating,
    Vote,
    VoteRequest,
)
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.errors import UsageError, WireError
from shoal.launch.outputs import say
from shoal.launch.remote.record_copy import RecordCopy
from shoal.launch.remote.silence import CoordinatorSilence
from shoal.wire import addresses
from shoal.wire.certificates import RunCertificate
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message
from shoal.wire.shortage import Shortage

_LOOK_EVERY = 0.1  # seconds
_BEAT = 0.5  # seconds between two signs of life to the coordinator, and between two announcements
_ANSWER_WITHIN = 1.5  # seconds
_COMMAND_WITHIN = 60.0  # seconds for the user's command
SILENCE = 3.0  # seconds without a word of the coordinator after which its host counts as lost


@dataclass(frozen=True, slots=True)
class KeeperPart:
    """What a host is to keep, and as whom."""

    me: str  # its voter
    launcher: str  # the voter of the host from which the run was started
    electorate: Electorate
    epoch: int
    host: str  # an address of this host that others reach
    address: str | None  # of the coordinator; None: it is about to say so in this host's folder
    on_split: str | None = None  # the user's command
    logs: str = ""  # of a coordinator of this host

    @property
    def is_launchers(self) -> bool:
        return self.me == self.launcher


ElectionOrder = StartCoordinator | StopCoordinator


class HostKeeper:
    """From its making to `close`. All methods may be called from any thread."""

    def __init__(self, part: KeeperPart, folder: Path, key: RunKey) -> None:
        self._part = part
        self._folder = folder
        self._key = key
        now = time.monotonic()
        self._voter = Voter(part.me, part.electorate, part.launcher, SILENCE, now, Random(), part.epoch)
        self._copy = RecordCopy()
        self._results = CallResults(folder) if not part.is_launchers else None  # the launcher's has them in its folder
        certificate = RunCertificate.new()
        self._listener = Listener(addresses.any_port(part.host), key, certificate=certificate)
        self._seat = HostSeat(self._listener.address, this_place())
        self._seats: dict[str, HostSeat] = {}
        self._target = part.address
        self._published = _stamp(folder)  # what there was before the coordinator of this host has said where it is
        self._link: Connection | None = None
        self._is_dialing = False
        self._dial_at = self._beat_at = 0.0
        self._has_own = part.is_launchers  # the coordinator, as far as whoever made this was told
        self._asking: set[str] = set()
        self._asks_command = False
        self._silence = CoordinatorSilence(now)
        self._has_heard = False
        self._guests: dict[int, Connection] = {}
        self._answers: deque[Callable[[], None]] = deque()  # of threads, for this one
        self._orders: deque[ElectionOrder] = deque()
        self._command: subprocess.Popen[bytes] | None = None  # the user's, while it runs
        self._shortage = Shortage("this host can't take part in elections")
        self._lock = threading.Lock()  # around what other threads see
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self.launcher_gone = False  # the coordinator has said so
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._poke, selectors.EVENT_READ, self._wake_up)
        self._thread = threading.Thread(target=self._run, name="shoal-host-keeper", daemon=True)
        self._thread.start()

    # What whoever made it asks -------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when there are orders."""
        return self._news

    def take_orders(self) -> list[ElectionOrder]:
        """What is to be done about this host's coordinator, in order; does not wait."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)
        with self._lock:
            orders = list(self._orders)
            self._orders.clear()
        return orders

    @property
    def epoch(self) -> int:
        return self._voter.epoch

    def is_launchers(self) -> bool:
        """Whether the coordinator is, as far as is known, the one of the launcher's host."""
        return self._voter.coordinator in (self._part.launcher, None)

    def unheard_for(self) -> float:
        """Seconds in which no coordinator was heard."""
        return self._silence.seconds

    @property
    def is_asking(self) -> bool:
        """Whether the user's command may say in a moment that the others are dead."""
        return self._asks_command

    @property
    def has_heard(self) -> bool:
        """Whether a coordinator was ever heard that hosts that are enough could hear."""
        return self._has_heard

    def where(self) -> str | None:
        """The address of the coordinator, if it was heard of."""
        return self._target

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.eventfd_write(self._poke, 1)
        self._end_command()
        self._thread.join()
        for connection in (*self._guests.values(), *filter(None, [self._link])):
            connection.close()
        self._listener.close()
        self._selector.close()
        if self._results is not None:
            self._results.close()
        with self._lock:
            os.close(self._news)
            os.close(self._poke)

    # The thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._look(time.monotonic())
            except OSError as error:  # no descriptor, no room on the disk: perhaps later
                self._shortage.tell(error)
                time.sleep(_LOOK_EVERY)
            except Exception:  # a host without a vote could neither go on nor end: say it, and go on with the next
                traceback.print_exc()
                time.sleep(_LOOK_EVERY)

    def _look(self, now: float) -> None:
        for key, _ in self._selector.select(_LOOK_EVERY):
            key.data()
        self._silence.look(now)
        while self._answers:
            self._answers.popleft()()
        self._look_for_own()
        if self._link is None and not self._is_dialing and self._target is not None and now >= self._dial_at:
            self._dial_at = now + _BEAT
            self._is_dialing = self._in_thread(partial(self._dial, self._target))
        if now >= self._beat_at:
            self._beat_at = now + _BEAT
            self._beat()
        self._act(self._voter.tick(time.monotonic()))

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._poke)

    def _in_thread(self, do: Callable[[], None]) -> bool:
        """Whether there was room for one more thread. If not, it is asked again later, as if nobody had answered."""
        try:
            threading.Thread(target=do, name="shoal-host-asks", daemon=True).start()
        except RuntimeError as error:
            self._shortage.tell(OSError(errno.EAGAIN, str(error)))
            return False
        return True

    def _answer(self, do: Callable[[], None]) -> None:
        """From another thread."""
        with self._lock:
            if not self._is_closed:
                self._answers.append(do)
                os.eventfd_write(self._poke, 1)

    def _beat(self) -> None:
        if self._link is not None:
            position = self._voter.position
            self._post(RecordKept(self._voter.epoch, position.index if position.epoch == self._voter.epoch else 0))
        if self._voter.has_coordinator and self._target is not None and self._link is not None:
            announced = CoordinatorAt(self._voter.epoch, self._part.me, self._target)
            for voter in (*self._voter.electorate.everyone(), self._part.launcher):
                self._ask(voter, announced)

    # The coordinator -----------------------------------------------------------------------------------

    def _look_for_own(self) -> None:
        """Whether the coordinator of this host has begun, and has said where it is."""
        if self._voter.has_coordinator and self._target is None and (stamp := _stamp(self._folder)) != self._published:
            self._published = stamp
            with contextlib.suppress(OSError):
                self._target = (self._folder / coordinator_address.FILE).read_text(encoding="utf-8")

    def _dial(self, address: str) -> None:
        """In a thread."""
        try:
            connection = connect(address, self._key, FROM_COORDINATOR, Deadline.after(_ANSWER_WITHIN))
        except (WireError, UsageError, OSError):
            self._answer(partial(self._linked, address, None))
            return
        self._answer(partial(self._linked, address, connection))

    def _linked(self, address: str, connection: Connection | None) -> None:
        self._is_dialing = False
        if connection is None:
            return
        if address != self._target or self._link is not None:
            connection.close()
            return
        self._link = connection
        self._selector.register(connection, selectors.EVENT_READ, self._hear)
        voter = self._voter
        self._post(Follow(voter.epoch, voter.me, self._seat, voter.position))

    def _post(self, message: Message) -> None:
        assert self._link is not None
        try:
            self._link.post(message)
            self._link.flush()
        except WireError:
            self._hang_up()

    def _hear(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            link.flush()
            while self._link is link and (message := link.try_receive()) is not None:
                if not self._heed(message):
                    self._hang_up()
        except WireError:
            self._hang_up()

    def _heed(self, message: Message) -> bool:
        """Whether who has said it is to be heard further."""
        now = time.monotonic()
        match message:
            case RecordEntry():
                return self._keep(message, now)
            case StillCoordinating(epoch, seats):
                self._seats |= seats
                self._has_heard = True
                return self._is_heard(self._voter.hear(epoch, now), now)
            case LauncherGone(epoch):
                self.launcher_gone |= epoch == self._voter.epoch
                self._tell_owner()
        return True

    def _keep(self, entry: RecordEntry, now: float) -> bool:
        whole = self._copy.gather(entry)
        if whole is None:
            return self._is_heard(self._voter.hear(entry.epoch, now), now)
        if entry.call is not None:
            if self._results is not None and not self._voter.has_coordinator:
                self._results.keep(entry.call, whole)
            return True
        if not self._is_heard(self._voter.keep(entry, now), now):
            return False
        self._copy.keep(whole, entry.anew)
        self._post(RecordKept(entry.epoch, entry.index))
        return True

    def _is_heard(self, heeded: bool, now: float) -> bool:
        if heeded:
            self._silence.hear(now)
        return heeded

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._selector.unregister(link)
            link.close()
            self._voter.close(time.monotonic())

    # Other hosts ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for connection in self._listener.poll_accept(BETWEEN_HOSTS):
            self._guests[connection.fileno()] = connection
            self._selector.register(connection, selectors.EVENT_READ, partial(self._hear_guest, connection))

    def _hear_guest(self, connection: Connection) -> None:
        try:
            connection.flush()
            while (message := connection.try_receive()) is not None:
                if (reply := self._reply(message)) is not None:
                    connection.post(reply)
        except WireError:
            self._selector.unregister(connection)
            self._guests = {number: other for number, other in self._guests.items() if other is not connection}
            connection.close()

    def _reply(self, message: Message) -> Message | None:
        now = time.monotonic()
        match message:
            case VoteRequest():
                vote, acts = self._voter.answer(message, now)
                self._act(acts)
                return vote
            case CoordinatorAt():
                heeded, acts = self._voter.meet(message, now)
                self._act(acts)
                return heeded
        return None

    def _ask(self, voter: str, question: Message) -> None:
        seat = self._seats.get(voter)
        if seat is not None and voter != self._part.me and voter not in self._asking:
            asks = self._in_thread(partial(self._ask_at, voter, seat.address, question))
            self._asking |= {voter} if asks else set()

    def _ask_at(self, voter: str, address: str, question: Message) -> None:
        """In a thread."""
        answer: Message | None = None
        deadline = Deadline.after(_ANSWER_WITHIN)
        with contextlib.suppress(WireError, OSError):
            connection = connect(address, self._key, BETWEEN_HOSTS, deadline)
            try:
                connection.send(question, deadline=deadline)
                answer = connection.receive(deadline)
            finally:
                connection.close()
        self._answer(partial(self._answered, voter, answer))

    def _answered(self, voter: str, answer: Message | None) -> None:
        self._asking.discard(voter)
        match answer:
            case Vote():
                self._act(self._voter.count(answer, time.monotonic()))
            case Heeded(epoch):
                self._act(self._voter.learn(epoch))

    # What the votes come to ------------------------------------------------------------------------------

    def _act(self, acts: list[ElectionAct]) -> None:
        for act in acts:
            match act:
                case AskForVotes(request, of):
                    for voter in of:
                        self._ask(voter, request)
                case StartCoordinator(epoch):
                    self._prepare(epoch)
                    self._order(act)
                case StopCoordinator() if self._has_own:
                    self._has_own = False
                    self._order(act)
                case FollowCoordinator(_, host, address):
                    self._follow(host, address)
                case AskWhetherDead(hosts):
                    self._ask_command(hosts)

    def _prepare(self, epoch: int) -> None:
        """All that a coordinator of this host needs to go on from here."""
        link, self._link = self._link, None
        if link is not None:
            self._selector.unregister(link)
            link.close()
        part = self._part
        SuccessionStart(
            epoch,
            self._voter.electorate,
            part.me,
            part.is_launchers,
            None if part.is_launchers else addresses.any_port(part.host),
            part.logs,
            self._voter.fenced,
            self._seats,
            time.time() - self.unheard_for(),
        ).save(self._folder)
        self._copy.save(self._folder)
        self._target, self._published = None, _stamp(self._folder)
        self._has_own = True

    def _follow(self, host: str, address: str) -> None:
        if host == self._part.me or address == self._target:
            return
        link, self._link = self._link, None
        if link is not None:
            self._selector.unregister(link)
            link.close()
        if self._has_own:
            self._has_own = False
            self._order(StopCoordinator("another was elected"))
        self._target, self._dial_at = address, 0.0
        with contextlib.suppress(OSError):
            coordinator_address.publish(self._folder, address)
        self._tell_owner()

    def _order(self, order: ElectionOrder) -> None:
        with self._lock:
            self._orders.append(order)
        self._tell_owner()

    def _tell_owner(self) -> None:
        os.eventfd_write(self._news, 1)

    def _ask_command(self, hosts: tuple[str, ...]) -> None:
        if self._part.on_split is not None and not self._asks_command:
            self._asks_command = self._in_thread(partial(self._run_command, self._part.on_split, hosts))

    def _run_command(self, command: str, hosts: tuple[str, ...]) -> None:
        """In a thread."""
        say(f"{', '.join(hosts)} can't be reached, and half of the hosts is left here: asking `{command}`")
        environ = {**os.environ, "SHOAL_HOSTS": " ".join(hosts), "SHOAL_FIRST": str(int(self._part.is_launchers))}
        are_dead = False
        with contextlib.suppress(OSError):
            with self._lock:
                if self._is_closed:
                    return
                nothing = subprocess.DEVNULL
                process = subprocess.Popen(["sh", "-c", command], env=environ, stdin=nothing, start_new_session=True)
                self._command = process
            try:
                are_dead = process.wait(_COMMAND_WITHIN) == 0
            except subprocess.TimeoutExpired:
                self._end_command()  # with all that it has started
                process.wait()
            self._command = None
        self._answer(partial(self._commanded, hosts, are_dead))

    def _end_command(self) -> None:
        command = self._command
        if command is not None and command.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)

    def _commanded(self, hosts: tuple[str, ...], are_dead: bool) -> None:
        self._asks_command = False
        if are_dead:
            self._act(self._voter.fence(hosts, time.monotonic()))


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Of the file that says where the coordinator is: another one each time it is said."""
    try:
        status = (folder / coordinator_address.FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
