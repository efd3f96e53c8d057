"""The coordinator: sockets, pipes and a clock around the membership's decisions. launch/coordinator.py is its process.

What must not be forgotten is written to the run's folder before anybody is told of it: a coordinator that is started
in the place of one that died goes on from there, and the members join it again.

It outlives the workers and ends when the launcher lets go of the launcher's pipe. If that is because the launcher died,
it sees to it that no worker stays behind and removes the run's folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from shoal.clock import Clock
from shoal.cluster import coordinator_address, folders, stacks
from shoal.cluster.call_results import CallResults
from shoal.cluster.coordinator_log import CoordinatorLog, Write, everything, stale_state
from shoal.cluster.coordinator_service import CoordinatorService, ServiceLog
from shoal.cluster.events import (
    Decision,
    Ending,
    Event,
    Exited,
    Fence,
    HangUp,
    Interrupted,
    KeepResult,
    KeepSpans,
    LinkClosed,
    Noted,
    ReportTrouble,
    RunOver,
    Said,
    ShowStack,
    Started,
    Tell,
    TellResults,
    Tick,
    WantWorkers,
)
from shoal.cluster.evidence import look_at, this_machine
from shoal.cluster.figures import point
from shoal.cluster.last_status import write_last
from shoal.cluster.launcher_pipe import (
    Awaited,
    Dying,
    Interrupt,
    LauncherPipe,
    MemberTold,
    Reaped,
    Released,
    Spawned,
    Wanted,
)
from shoal.cluster.membership import LEAVING, Membership
from shoal.cluster.messages import (
    TEXT_LIMIT,
    TO_COORDINATOR,
    CoordinatorEpoch,
    Finished,
    Join,
    StackRequest,
    StackTold,
    StatusRequest,
)
from shoal.cluster.slow_input import SlowInput
from shoal.cluster.storyteller import StoryLine, Storyteller
from shoal.cluster.succession.record_copies import GONE
from shoal.cluster.succession.record_sender import LEASE, RecordSender, Sending
from shoal.cluster.succession.succession_messages import Follow, RecordKept
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.cluster.view import Member
from shoal.config import RunConfig
from shoal.errors import PeerClosed, PeerTimeout, WireError
from shoal.observe.chart import Chart
from shoal.observe.record_files import LIMIT, TRACE_LIMIT, RecordFile, from_frame
from shoal.observe.story import Story, StoryKind
from shoal.wire import status_page
from shoal.wire.connection import Connection
from shoal.wire.held_folder import hold
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message
from shoal.wire.shortage import Shortage

TICK = 0.1  # seconds
_ANSWERS_WITHIN = 0.3  # that a process takes to write down its stack
GRACE = 3.0  # seconds that workers get to end by themselves when the launcher is gone: nothing stays for 5


class Coordinator:
    """One run's coordinator. `run` returns when nobody needs it any more; then `close`."""

    def __init__(
        self,
        config: RunConfig,
        key: RunKey,
        folder: Path,
        launcher_pipe: LauncherPipe,
        clock: Clock,
        open_service: Callable[[ServiceLog | None], CoordinatorService] | None = None,
        elected: SuccessionStart | None = None,
    ) -> None:
        """`open_service`: how its service is made, from what another coordinator wrote down if there was one.

        `elected`: of a run on several hosts, of which any may die.
        """
        self._folder = folder
        self._launcher_pipe = launcher_pipe
        self._clock = clock
        folders.forget_coordinator(folder)  # one that died, if there was one
        if elected is not None and elected.logs:
            config = msgspec.structs.replace(config, logs=elected.logs)
        own = elected.address if elected is not None else None
        address = own or config.address or folders.coordinator_address(folder)
        self._listener = Listener(address, key, certificate=folders.certificate(folder, address))
        self._me = Member(
            "coordinator", "coordinator", os.getpid(), platform.node(), this_machine(), self._listener.address
        )
        self._log = CoordinatorLog(folder)
        self._results = CallResults(folder)
        self._said_unwritten = False
        self._logs = Path(config.logs) if config.logs else None
        self._story = Story(self._logs) if self._logs is not None else None
        self._slow_input = SlowInput()
        self._chart = Chart(self._logs) if self._logs is not None else None
        self._storyteller = Storyteller()
        self._records: dict[str, RecordFile] = {}  # of members on other hosts
        self._record_limit = TRACE_LIMIT if config.trace else LIMIT
        self._asked: dict[str, stacks.AskedStack] = {}  # for its stack
        self._asked_far: set[int] = set()  # members of other hosts, by their links
        recalled = self._log.recall()
        service = open_service(recalled.service if recalled is not None else None) if open_service is not None else None
        self._membership = (
            Membership.restored(
                recalled.membership, config, self._me, clock.now(), service, finished=self._results.calls()
            )
            if recalled is not None
            else Membership(config, self._me, clock.now(), service)
        )
        self._saves = config.saving is not None
        self._elected = elected
        self._sender = RecordSender(elected, clock.now()) if elected is not None else None
        self._said_alone = False
        self._copied: Write | None = None  # last
        self._held: deque[tuple[int, list[Decision]]] = deque()  # until hosts that are enough have that much on record
        self._events: deque[Event] = deque()
        if self._log.is_stale:
            self._events.append(Interrupted(stale_state(folder), 1))
        self._links: dict[int, Connection] = {}
        self._shortage = Shortage("the coordinator can let nobody in")
        self._is_listening = True
        self._numbers = itertools.count(1)
        self._groups: dict[str, int] = {}  # worker -> its process group
        self._leave_at: float | None = None  # set when the launcher let go of the launcher's pipe
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._launcher_pipe, selectors.EVENT_READ, self._hear_launcher)
        self._holds = contextlib.ExitStack()
        self._holds.enter_context(hold(folder))
        coordinator_address.publish(folder, self._listener.address)

    def run(self) -> None:
        """Serve until the launcher lets go and no worker is left."""
        next_tick = self._clock.now() + TICK
        while not self._may_leave():
            for ready, _ in self._selector.select(max(0.0, next_tick - self._clock.now())):
                ready.data()
            # After all that has arrived was heard: what waited in a socket while this process was
            # held up is no silence.
            if self._clock.now() >= next_tick:
                self._tick()
                self._tick_sender()
                next_tick = self._clock.now() + TICK
            self._perform_decisions()

    def close(self) -> None:
        """Leave nothing behind: no worker, no socket, no folder. Unless this one failed: then another may go on."""
        self._holds.close()
        self._log.close()
        self._results.close()
        if self._leave_at is None:
            return
        for group in self._groups.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for connection in self._links.values():
            connection.close()
        self._listener.close()
        self._selector.close()
        folders.remove(self._folder)

    def _may_leave(self) -> bool:
        if self._sender is not None and self._sender.deposed is not None:
            return True
        if self._leave_at is None:
            return False
        # Nobody told that they are gone if the launcher was killed: they hear End and may take the time to go.
        return self._clock.now() >= self._leave_at or not any(map(_exists, self._groups.values()))

    # What comes in ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connections = self._listener.poll_accept(TO_COORDINATOR)
        except OSError as error:  # no descriptor is left: whoever waits is let in when there is one
            self._shortage.tell(error)
            self._selector.unregister(self._listener)
            self._is_listening = False
            return
        for connection in connections:
            link = next(self._numbers)
            self._links[link] = connection
            self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, link))

    def _hear(self, link: int) -> None:
        connection = self._links.get(link)
        if connection is None:
            return  # it was lost just now
        try:
            connection.flush()
            self._heed_room(link)
            self._take_messages(link, connection)
        except WireError as error:
            self._lose(link, error)

    def _take_messages(self, link: int, connection: Connection) -> None:
        """As long as it is ours: what is answered may find out that it is closed, and lose it."""
        while self._links.get(link) is connection and (message := connection.try_receive()) is not None:
            if isinstance(message, StackTold):
                self._show_told(link, message)
            elif isinstance(message, Follow | RecordKept):
                self._hear_host(link, message)
            else:
                if isinstance(message, Join) and self._sender is not None:
                    self._welcome(link, message.epoch, self._sender)
                self._events.append(Said(link, message))

    def _hear_launcher(self) -> None:
        try:
            messages = self._launcher_pipe.receive()
        except EOFError:
            self._selector.unregister(self._launcher_pipe)
            self._lose_launcher()
            return
        if any(isinstance(message, Dying | Reaped) for message in messages):
            for link in tuple(self._links):  # what the dead said comes before their death
                self._hear(link)
        for message in messages:
            match message:
                case Spawned(member, pid):
                    self._groups[member] = pid
                    self._events.append(Started(member))
                case Awaited(member):
                    self._events.append(Started(member))
                case Dying(member):
                    self._read_status_pages()
                    self._events.append(Ending(member))
                case Reaped(member, code):
                    self._groups.pop(member, None)
                    self._read_status_pages()
                    self._events.append(Exited(member, code))
                case Released():
                    self._groups.clear()
                case Interrupt(why, code):
                    self._events.append(Interrupted(why, code))

    def _lose_launcher(self) -> None:
        if self._elected is not None and not self._elected.is_launchers and self._membership.end is None:
            sys.exit("whoever has started this coordinator is gone: the other hosts elect another")
        for link, message in self._sender.say_launcher_gone() if self._sender is not None else ():
            self._send(link, message)
        self._leave_at = self._clock.now() + (LEAVING if self._saves else GRACE)
        self._events.append(Interrupted("the launcher is gone", 1))

    # Hosts that have copies of the record -------------------------------------------------------------

    def _hear_host(self, link: int, message: Follow | RecordKept) -> None:
        if self._sender is None:
            self._close(link)
            return
        sendings, needs_all = self._sender.hear(link, message, self._clock.now())
        for call in self._results.calls() if needs_all else ():
            self._send_all([it for it in self._sender.add_result(call, self._results.read(call)) if it[0] == link])
        self._send_all(sendings)
        self._perform_held()

    def _welcome(self, link: int, epoch: int, sender: RecordSender) -> None:
        """A member joins: all that is said to it is of one epoch. Who has heard of a later one has left this one."""
        if epoch > sender.epoch:
            sender.deposed = f"a member knows a coordinator of epoch {epoch}; this one was of epoch {sender.epoch}"
        self._send(link, CoordinatorEpoch(sender.epoch))

    def _tick_sender(self) -> None:
        if self._sender is None:
            return
        now = self._clock.now()
        self._send_all(self._sender.tick(now))
        for link in self._sender.silent(now):
            self._lose(link, PeerTimeout((), f"its host has not been heard for {GONE:.0f} s"))
        if (places := self._sender.missing_places(now)) and self._membership.view is not None:
            there = [member for member in self._membership.view.workers if member.nearby is not None]
            lost = [member.id for member in there if member.nearby is not None and member.nearby.place in places]
            lost = [id for id in lost if self._membership.link_of(id) is None]
            self._events.extend(Ending(id) for id in lost)
            if lost and self._elected is not None and self._elected.last_heard is not None:
                after = time.time() - self._elected.last_heard
                text = f"the host of {', '.join(lost)} is lost: the coordinator there was last heard {after:.1f} s ago"
                self._tell_story([StoryLine(StoryKind.TROUBLE, text)])
        alone = self._sender.unheard_for(now) > 2 * LEASE
        if alone and not self._said_alone:
            self._show("too few hosts answer: nothing is decided until more are heard, or another coordinator")
        self._said_alone = alone

    def _send_all(self, sendings: list[Sending]) -> None:
        for link, message in sendings:
            self._send(link, message)

    def _tick(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._be_found()
        self._show_stacks()
        suspects = self._membership.suspects(self._clock.now())
        seen = {member.id: look_at(member.pid) for member in suspects if member.machine == self._me.machine}
        if suspects:
            self._read_status_pages()
        self._events.append(Tick({id: evidence for id, evidence in seen.items() if evidence}))
        self._write_down()  # what nobody had to be told, and what there was no room for
        self._draw()

    def _draw(self) -> None:
        """The next point of the run's chart, about once a second."""
        at = time.time()
        if self._chart is not None and self._membership.end is None and self._chart.is_due(at):
            status = self._membership.status(self._clock.now())
            self._tell_story(self._slow_input.of(status, self._clock.now()))
            now = point(status, at)
            if now is not None:
                self._chart.add(now)

    def _be_found(self) -> None:
        """If somebody has deleted the run's folder: whom it has stays, and others find it once there is one again."""
        if not self._listener.restore() and coordinator_address.is_published(self._folder):
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the launcher is about to make it anew
            coordinator_address.publish(self._folder, self._listener.address)
            self._holds.close()
            self._holds.enter_context(hold(self._folder))
            self._results.begin_anew()
            self._log.begin_anew()
            self._write_down()

    def _read_status_pages(self) -> None:
        """Before trouble is judged: what the workers of this host were doing when it came."""
        for path in self._folder.glob(f"*{folders.STATUS_PAGE}"):
            if (written := status_page.read(path)) is not None:
                self._events.append(Noted(path.name.removesuffix(folders.STATUS_PAGE), *written))

    # What goes out ----------------------------------------------------------------------------------

    def _perform_decisions(self) -> None:
        while self._events:
            event = self._events.popleft()
            self._tell_story(self._storyteller.of_event(event))
            decisions = self._membership.handle(event, self._clock.now())
            for decision in decisions:
                if isinstance(decision, KeepResult):
                    self._results.keep(decision.call, decision.result)
                    if self._sender is not None:
                        self._send_all(self._sender.add_result(decision.call, decision.result))
            if any(isinstance(decision, Tell | TellResults | ReportTrouble) for decision in decisions):
                self._write_down()
            if isinstance(event, Said) and isinstance(event.message, StatusRequest):
                self._perform(decisions)  # how it is, whatever counts
                continue
            self._held.append((self._sender.index if self._sender is not None else 0, decisions))
            self._perform_held()

    def _perform_held(self) -> None:
        """What was decided, in order, as far as it counts. When the launcher is gone all ends, whoever agrees."""
        sender = self._sender if self._leave_at is None else None
        while self._held and (sender is None or self._held[0][0] <= sender.committed):
            self._perform(self._held.popleft()[1])

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._tell_story(self._storyteller.of_decision(decision))
            match decision:
                case Tell(links, message):
                    for link in links:
                        self._send(link, message)
                case TellResults(links, calls):
                    for call in calls:
                        finished = Finished(call, self._results.read(call))
                        for link in links:
                            self._send(link, finished)
                case KeepSpans(member, frame):
                    self._keep_spans(member, frame)
                case HangUp(link):
                    self._close(link)
                case Fence(cut_off):
                    self._end_process(cut_off)
                case WantWorkers(workers):
                    self._launcher_pipe.send(Wanted(workers))
                case ReportTrouble(text):
                    self._show(text)
                case ShowStack(member):
                    if member in self._groups:
                        stacks.ask(self._folder, member, self._groups[member])
                        self._asked[member] = stacks.AskedStack(self._clock.now() + _ANSWERS_WITHIN)
                    elif (far := self._membership.link_of(member)) is not None:  # of another host
                        self._asked_far.add(far)
                        self._send(far, StackRequest())
                case RunOver(end):
                    print(f"the run is over: {end.reason}", file=sys.stderr, flush=True)
                    if self._logs is not None:
                        write_last(self._logs, self._membership.status(self._clock.now()))
                    self._launcher_pipe.send(end)

    def _keep_spans(self, member: str, frame: bytes) -> None:
        block = from_frame(frame)
        if block is None or self._logs is None:
            return
        if member not in self._records:
            self._records[member] = RecordFile(self._logs, member, self._record_limit)
        self._records[member].write(block)

    def _show(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self._launcher_pipe.send(MemberTold(text))

    def _show_stacks(self) -> None:
        """Of those who were asked, and have had the time to answer."""
        for member, asked in list(self._asked.items()):
            if not asked.is_told(stacks.size(self._folder, member), self._clock.now()):
                continue
            del self._asked[member]
            if member in self._groups and (text := stacks.told(self._folder, member, self._groups[member])):
                self._show(text)
                self._tell_story([StoryLine(StoryKind.STACK, text, member)])

    def _show_told(self, link: int, told: StackTold) -> None:
        """Of a member on another host, which has answered itself."""
        member = self._membership.member_at(link)
        if member is not None and link in self._asked_far:
            self._asked_far.remove(link)
            text = f"{member} is here, the last call first:\n{told.text[:TEXT_LIMIT]}"
            self._show(text)
            self._tell_story([StoryLine(StoryKind.STACK, text, member)])

    def _tell_story(self, lines: list[StoryLine]) -> None:
        if self._story is not None:
            for line in lines:
                self._story.write(*line)

    def _write_down(self) -> None:
        """Before anybody is told of it. If there is no room the run goes on: only its coordinator must not die now."""
        self._results.catch_up()
        write = None
        if self._results.trouble is None:
            write = self._log.keep(self._membership, self._clock.now())
        else:
            self._log.disown(self._clock.now())  # it speaks of calls whose results would be missing
        self._copy_out(write)
        trouble = self._log.trouble or self._results.trouble
        if trouble is not None and not self._said_unwritten:
            self._said_unwritten = True
            text = (
                f"the run's state can't be written to {self._folder}: {trouble.strerror}. The run goes on, but would "
                "not survive the loss of its coordinator until there is room again."
            )
            self._show(text)

    def _copy_out(self, write: Write | None) -> None:
        """To the hosts that have copies. What there is no room for here is sent there all the same: as a whole."""
        if self._sender is None:
            return
        if write is None and (self._log.trouble or self._results.trouble):
            write = everything(self._membership)
        if write is not None and write != self._copied:
            self._copied = write
            self._send_all(self._sender.append(write.content, write.anew))

    def _end_process(self, member: Member) -> None:
        """A worker of this host that was cut off must not wake up and write into the others' files."""
        group = self._groups.get(member.id)
        if group == member.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _send(self, link: int, message: Message) -> None:
        if link in self._links:
            try:
                self._links[link].post(message)
                self._heed_room(link)
            except WireError as error:
                self._lose(link, error)

    def _heed_room(self, link: int) -> None:
        """Ask to be called when there is room for what could not be sent at once."""
        connection = self._links[link]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.pending else 0)
        registered = self._selector.get_key(connection)
        if registered.events != events:
            self._selector.modify(connection, events, registered.data)

    def _lose(self, link: int, error: WireError) -> None:
        connection = self._links.get(link)
        if connection is None:
            return  # that was noticed before
        if isinstance(error, PeerClosed):
            with contextlib.suppress(WireError):  # what it said before it hung up, if a send found that out
                self._take_messages(link, connection)
            if link not in self._links:
                return  # an answer to that was refused, too
        else:
            print(f"link {link} is closed: {error}", file=sys.stderr, flush=True)
        self._close(link)
        self._read_status_pages()
        self._events.append(LinkClosed(link))

    def _close(self, link: int) -> None:
        if self._sender is not None:
            self._sender.lose(link)
        connection = self._links.pop(link, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
