"""The coordinator: sockets, pipes and a clock around the membership's decisions. launch/coordinator.py is its process.

What must not be forgotten is written to the run's folder before anybody is told of it: a coordinator that is started
in the place of one that died goes on from there, and the members join it again.

It outlives the workers and ends when the launcher lets go of the leash. If that is because the launcher died,
it sees to it that no worker stays behind and removes the run's folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import selectors
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from shoal.clock import Clock
from shoal.cluster import folders, meeting
from shoal.cluster.department import Department
from shoal.cluster.events import (
    Closed,
    Ending,
    Event,
    Exited,
    Fence,
    HangUp,
    Interrupted,
    Noted,
    Over,
    Report,
    Said,
    Started,
    Tell,
    Tick,
    Want,
)
from shoal.cluster.evidence import look_at
from shoal.cluster.leash import Dying, Interrupt, Leash, Reaped, Released, Spawned, Told, Wanted
from shoal.cluster.membership import LEAVING, Membership, Record
from shoal.cluster.messages import TO_COORDINATOR
from shoal.cluster.view import Member
from shoal.config import RunConfig
from shoal.errors import PeerClosed, WireError
from shoal.wire import slate
from shoal.wire.connection import Connection
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message

TICK = 0.1  # seconds
_RECORD = "record"
GRACE = 5.0  # seconds that workers get to end by themselves when the launcher is gone


class Coordinator:
    """One run's coordinator. `run` returns when nobody needs it any more; then `close`."""

    def __init__(
        self,
        config: RunConfig,
        key: RunKey,
        folder: Path,
        leash: Leash,
        clock: Clock,
        open_department: Callable[[bytes | None], Department] | None = None,
    ) -> None:
        """`open_department`: how its department is made, from what another one wrote down if there was one."""
        self._folder = folder
        self._leash = leash
        self._clock = clock
        folders.forget_coordinator(folder)  # one that died, if there was one
        address = config.address or folders.coordinator_address(folder)
        self._listener = Listener(address, key, certificate=folders.certificate(folder, address))
        self._me = Member("coordinator", "coordinator", os.getpid(), platform.node(), self._listener.address)
        record = _recall(folder)
        written = record.department if record is not None else None
        department = open_department(written) if open_department is not None else None
        self._membership = (
            Membership.restored(record, config, self._me, clock.now(), department)
            if record is not None
            else Membership(config, self._me, clock.now(), department)
        )
        self._written = record
        self._saves = config.saving is not None
        self._events: deque[Event] = deque()
        self._links: dict[int, Connection] = {}
        self._numbers = itertools.count(1)
        self._groups: dict[str, int] = {}  # worker -> its process group
        self._leave_at: float | None = None  # set when the launcher let go of the leash
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._leash, selectors.EVENT_READ, self._hear_launcher)
        meeting.publish(folder, self._listener.address)

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
                next_tick = self._clock.now() + TICK
            self._perform_decisions()

    def close(self) -> None:
        """Leave nothing behind: no worker, no socket, no folder. Unless this one failed: then another may go on."""
        if self._leave_at is None:
            return
        for group in self._groups.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for connection in self._links.values():
            connection.close()
        self._listener.close()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _may_leave(self) -> bool:
        if self._leave_at is None:
            return False
        # Nobody told that they are gone if the launcher was killed: they hear End and may take the time to go.
        return self._clock.now() >= self._leave_at or not any(map(_exists, self._groups.values()))

    # What comes in ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        for connection in self._listener.poll_accept(TO_COORDINATOR):
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
        while (message := connection.try_receive()) is not None:
            self._events.append(Said(link, message))

    def _hear_launcher(self) -> None:
        try:
            messages = self._leash.receive()
        except EOFError:
            self._selector.unregister(self._leash)
            self._leave_at = self._clock.now() + (LEAVING if self._saves else GRACE)
            self._events.append(Interrupted("the launcher is gone", 1))
            return
        if any(isinstance(message, Dying | Reaped) for message in messages):
            for link in tuple(self._links):  # what the dead said comes before their death
                self._hear(link)
        for message in messages:
            match message:
                case Spawned(member, pid):
                    self._groups[member] = pid
                    self._events.append(Started(member))
                case Dying(member):
                    self._read_slates()
                    self._events.append(Ending(member))
                case Reaped(member, code):
                    self._groups.pop(member, None)
                    self._read_slates()
                    self._events.append(Exited(member, code))
                case Released():
                    self._groups.clear()
                case Interrupt(why, code):
                    self._events.append(Interrupted(why, code))

    def _tick(self) -> None:
        suspects = self._membership.suspects(self._clock.now())
        seen = {member.id: look_at(member.pid) for member in suspects if member.host == self._me.host}
        if suspects:
            self._read_slates()
        self._events.append(Tick({id: evidence for id, evidence in seen.items() if evidence}))

    def _read_slates(self) -> None:
        """Before trouble is judged: what the workers of this host were doing when it came."""
        for path in self._folder.glob(f"*{folders.SLATE}"):
            if (written := slate.read(path)) is not None:
                self._events.append(Noted(path.name.removesuffix(folders.SLATE), *written))

    # What goes out ----------------------------------------------------------------------------------

    def _perform_decisions(self) -> None:
        while self._events:
            decisions = self._membership.handle(self._events.popleft(), self._clock.now())
            if any(isinstance(decision, Tell | Report) for decision in decisions):
                self._write_down()
            for decision in decisions:
                match decision:
                    case Tell(links, message):
                        for link in links:
                            self._send(link, message)
                    case HangUp(link):
                        self._close(link)
                    case Fence(member):
                        self._end_process(member)
                    case Want(workers):
                        self._leash.send(Wanted(workers))
                    case Report(text):
                        print(text, file=sys.stderr, flush=True)
                        self._leash.send(Told(text))
                    case Over(end):
                        print(f"the run is over: {end.reason}", file=sys.stderr, flush=True)
                        self._leash.send(end)

    def _write_down(self) -> None:
        record = self._membership.record()
        if record is not None and record != self._written:
            draft = self._folder / f".{_RECORD}"
            draft.write_bytes(msgspec.msgpack.encode(record))
            os.replace(draft, self._folder / _RECORD)
            self._written = record

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
        if isinstance(error, PeerClosed):
            with contextlib.suppress(WireError):  # what it said before it hung up, if a send found that out
                self._take_messages(link, self._links[link])
        else:
            print(f"link {link} is closed: {error}", file=sys.stderr, flush=True)
        self._close(link)
        self._read_slates()
        self._events.append(Closed(link))

    def _close(self, link: int) -> None:
        connection = self._links.pop(link, None)
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()


def _recall(folder: Path) -> Record | None:
    """What the coordinator before this one wrote down, if there was one."""
    try:
        return msgspec.msgpack.decode((folder / _RECORD).read_bytes(), type=Record)
    except FileNotFoundError:
        return None


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
