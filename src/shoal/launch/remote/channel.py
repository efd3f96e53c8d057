"""Between a launcher and the agent that it has started on a host: one JSON message per line, each way.

    launcher ──Inquiry──▶ agent         what is there?
    launcher ◀─FactsTold── agent        or Unable: why it can't take part
    launcher ──HostOrder──▶ agent       the key, the settings, the workers
    launcher ◀──Reached─── agent        or Unable: it can't reach the coordinator's address
    launcher ────Go──────▶ agent        the coordinator listens
    launcher ◀── Spawned, Dying, Reaped, Printed, LogText … AgentLeft
    launcher ◀─PlaceWanted─ agent       for one in the place of a worker that died
    launcher ─PlaceGranted▶ agent       its id
    launcher ───End───────▶ agent       the run is over

They travel over the standard streams of ssh, srun or whatever started the agent, so the key is in no command line and
in no environment. When the launcher ends, by whatever cause, the agent reads the end of its input, and ends all that it
has started.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque

import msgspec

from shoal.cluster.launcher_pipe import Dying, Reaped, Spawned
from shoal.cluster.messages import End
from shoal.cluster.succession.electorate import Electorate
from shoal.config import RunConfig
from shoal.errors import BadFrame
from shoal.launch.host_folder import HeldCheckpoint, HostFolder
from shoal.launch.remote.host_facts import HostFacts
from shoal.wire.messages import Message

_LOOK_EVERY = 0.2  # seconds
LINE_LIMIT = 4 << 20  # bytes


class FolderInquiry(msgspec.Struct, frozen=True):
    """Whose is this folder for checkpoints, and what is in it?"""

    folder: str
    run: str
    resume: str | None  # as on the command line
    host: str = ""  # what the one that is asked is called


class Inquiry(Message, frozen=True):
    """Launcher -> agent: what is there? Answered with FactsTold or Unable."""

    folder: str  # to work in
    script: str
    is_module: bool
    backend: str
    environment: dict[str, str]  # on top of the host's own
    checkpoints: FolderInquiry | None = None  # None: there are none on disks


class FactsTold(Message, frozen=True):
    """Agent -> launcher."""

    facts: HostFacts
    folder: HostFolder | None = None  # for checkpoints, if that was asked


class Unable(Message, frozen=True):
    """Agent -> launcher: it can't take part, and this is why."""

    why: str


class HostSuccession(msgspec.Struct, frozen=True):
    """A host's part in the election of coordinators."""

    me: str  # its voter
    launcher: str  # the one of the launcher's host
    electorate: Electorate
    epoch: int = 1
    on_split: str | None = None  # the user's command


class HostOrder(Message, frozen=True):
    """Launcher -> agent: your part of the run. Answered with Reached or Unable."""

    config: RunConfig  # as it is on the launcher's host
    members: tuple[str, ...]  # to be started
    max_restarts: int
    key: str
    pin: str  # of the coordinator's certificate
    address: str  # HOST:PORT where it listens
    succession: HostSuccession | None = None  # None: the run ends with its first loss
    resumed: HeldCheckpoint | None = None  # that the run goes on from, if this host has no copy of it


class Reached(Message, frozen=True):
    """Agent -> launcher: the address can be reached from here."""


class Go(Message, frozen=True):
    """Launcher -> agent: the coordinator listens."""


class PlaceWanted(Message, frozen=True):
    """Agent -> launcher: who may come in this place? Answered with PlaceGranted."""

    place: str


class PlaceGranted(Message, frozen=True):
    """Launcher -> agent: this one. The coordinator has been told."""

    place: str
    member: str


class Printed(Message, frozen=True):
    """Agent -> launcher: a worker at the terminal has printed this."""

    stream: int  # 1 or 2
    data: bytes


class LogText(Message, frozen=True):
    """Agent -> launcher: this was added to a worker's log."""

    log: str
    data: bytes


class AgentLeft(Message, frozen=True):
    """Agent -> launcher: nobody takes part from here any more."""

    reason: str  # empty: as it should be


_TO_AGENT = msgspec.json.Decoder(Inquiry | HostOrder | Go | PlaceGranted | End)
_TO_LAUNCHER = msgspec.json.Decoder(
    FactsTold | Unable | Reached | Spawned | Dying | Reaped | PlaceWanted | Printed | LogText | AgentLeft
)


class AgentChannel:
    """One end. Several threads may send; one receives. Its owner closes the descriptors."""

    def __init__(self, read_fd: int, write_fd: int, at_agent: bool) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._decoder: msgspec.json.Decoder[Message] = _TO_AGENT if at_agent else _TO_LAUNCHER
        self._encode = msgspec.json.Encoder().encode
        self._partial = b""
        self._waiting: deque[Message] = deque()  # received together with one that was asked for alone
        self._lock = threading.Lock()  # never held while somebody waits
        self._outbox = bytearray()
        self._is_let_go = False
        os.set_blocking(write_fd, False)

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return self._read_fd

    def send(self, message: Message) -> None:
        """Send, if the other side is still there, as far as it goes now; `flush` sends the rest. Waits for nobody."""
        with self._lock:
            self._outbox += self._encode(message) + b"\n"
        self.flush()

    def send_text(self, message: Message) -> None:
        """The same, but only when there is room: what workers print waits, what is said about them does not."""
        while not self.drain(_LOOK_EVERY) and not self._is_let_go:
            pass
        self.send(message)

    def flush(self) -> None:
        """Send what could not be sent before, as far as it goes now."""
        with self._lock:
            try:
                while self._outbox and not self._is_let_go:
                    del self._outbox[: os.write(self._write_fd, self._outbox)]
            except BlockingIOError:
                return
            except OSError:
                pass  # nobody is there
            self._outbox.clear()

    def drain(self, within: float) -> bool:
        """Wait until all is sent, or nobody is there to send it to. Whether it is so."""
        until = time.monotonic() + within
        self.flush()
        while self._outbox and (left := until - time.monotonic()) > 0:
            self._wait(left, for_input=False)
            self.flush()
        return not self._outbox

    def let_go(self) -> None:
        """The other side is gone for good, perhaps without a word: nothing more is sent, and nobody waits for it."""
        self._is_let_go = True

    @property
    def is_let_go(self) -> bool:
        return self._is_let_go

    def next(self, within: float | None = None) -> Message:
        """The next message alone; waits for it. EOFError, BadFrame; TimeoutError if nothing comes within that time."""
        until = time.monotonic() + within if within is not None else None
        while not self._waiting:
            left = until - time.monotonic() if until is not None else None
            if left is not None and left <= 0:
                raise TimeoutError
            self.flush()
            if self._wait(left):
                self._waiting.extend(self._receive())
        return self._waiting.popleft()

    @property
    def has_more(self) -> bool:
        """Whether `receive` has something to tell although nothing is to be read."""
        return bool(self._waiting)

    def receive(self) -> list[Message]:
        """Whatever has arrived; waits for the first bytes. EOFError once the other side is gone; BadFrame."""
        if self._waiting:
            messages = list(self._waiting)
            self._waiting.clear()
            return messages
        return self._receive()

    def _receive(self) -> list[Message]:
        data = self._read()
        if not data:
            raise EOFError
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LINE_LIMIT:
            raise BadFrame(f"a line of more than {LINE_LIMIT:,} bytes")
        try:
            return [self._decoder.decode(line) for line in lines]
        except msgspec.MsgspecError as error:
            raise BadFrame(f"{lines[0][:200]!r} is not what was expected: {error}") from error

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._read_fd, 1 << 16)
            except BlockingIOError:  # both directions may be one socket
                self._wait(None)

    def _wait(self, seconds: float | None, for_input: bool = True) -> bool:
        """Until something can be done, at most so long. Whether there is something to read."""
        poll = select.poll()
        if for_input:
            poll.register(self._read_fd, select.POLLIN)
        if self._outbox:
            poll.register(self._write_fd, select.POLLOUT)
        ready = poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        return any(fd == self._read_fd and events & ~select.POLLOUT for fd, events in ready)
