"""The pipes between the launcher and the coordinator: one JSON message per line, each way.

The launcher sees processes start and end and hears Ctrl-C; it tells the coordinator. The coordinator knows
when and why the run is over; it tells the launcher. If either goes away, the other reads the end of the
file: a launcher killed with -9 leaves nobody behind.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from shoal.cluster.messages import End
from shoal.wire.messages import Message


class Spawned(Message, frozen=True):
    """Launcher -> coordinator: this worker's process has this id, and leads a process group of its own."""

    member: str
    pid: int


class Awaited(Message, frozen=True):
    """Launcher -> coordinator: this worker is about to come, from another host. A process of its is not ours."""

    member: str


class Wanted(Message, frozen=True):
    """Coordinator -> launcher: start so many more workers."""

    workers: int


class MemberTold(Message, frozen=True):
    """Coordinator -> launcher: show this to the user."""

    text: str


class Dying(Message, frozen=True):
    """Launcher -> coordinator: this worker's process is ending; its code follows."""

    member: str


class Reaped(Message, frozen=True):
    """Launcher -> coordinator: this worker's process has ended. A negative code is a signal's number."""

    member: str
    code: int


class Released(Message, frozen=True):
    """Launcher -> coordinator: no worker and no child of one is left. What follows is the end of the file."""


class Interrupt(Message, frozen=True):
    """Launcher -> coordinator: end the run, this is why, and this is what to exit with."""

    why: str
    code: int


class LauncherPipe:
    """One end of the two pipes; their owner closes them. Not for several threads."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._partial = b""
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(
            Spawned | Awaited | Dying | Reaped | Released | Interrupt | MemberTold | Wanted | End
        ).decode

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return self._read_fd

    def send(self, message: Message) -> None:
        """Send, if the other side is still there."""
        data = self._encode(message) + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._write_fd, data) :]

    def receive(self) -> list[Message]:
        """Whatever has arrived; waits for the first bytes. EOFError once the other side is gone."""
        data = os.read(self._read_fd, 1 << 16)
        if not data:
            raise EOFError
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [self._decode(line) for line in lines]
