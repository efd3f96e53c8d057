"""Waiting on many peers at once, and moving many buffers over many connections without deadlock."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from shoal.clock import Deadline
from shoal.errors import PeerTimeout
from shoal.wire.connection import Connection, Place
from shoal.wire.messages import Message
from shoal.wire.waits import READABLE, WRITABLE, milliseconds
from shoal.wire.wakeup import Wakeup


class Switchboard:
    """Polls a set of connections and a wakeup. One system call per wait; registering costs none."""

    def __init__(self, connections: Iterable[Connection], wake: Wakeup | None) -> None:
        self._wake = wake
        self._poll = select.poll()
        self._by_fd = {connection.fileno(): connection for connection in connections}
        for fd in self._by_fd:
            self._poll.register(fd, READABLE)
        if wake is not None:
            self._poll.register(wake.fileno(), READABLE)

    def wait(self, deadline: Deadline) -> list[Connection]:
        """The connections that have something to read; posted frames are flushed meanwhile.

        Returns nothing when there was only something to flush, or when the deadline passed. Raises the
        wakeup's reason if it is set.
        """
        unsent = [connection for connection in self._by_fd.values() if connection.pending]
        for connection in unsent:
            self._poll.modify(connection.fileno(), READABLE | WRITABLE)
        ready = self._poll.poll(milliseconds(deadline))
        for connection in unsent:
            self._poll.modify(connection.fileno(), READABLE)
        if self._wake is not None:
            self._wake.check()
        readable = []
        for fd, events in ready:
            connection = self._by_fd[fd]
            if events & WRITABLE:
                connection.flush()
            if events & ~WRITABLE:
                readable.append(connection)
        return readable

    def forget(self, connection: Connection) -> None:
        """Wait on this one no more. Forgetting twice does nothing."""
        for fd in [fd for fd, known in self._by_fd.items() if known is connection]:
            self._poll.unregister(fd)
            del self._by_fd[fd]

    def __len__(self) -> int:
        return len(self._by_fd)


class Send(NamedTuple):
    """One frame to send."""

    connection: Connection
    message: Message
    buffers: Sequence[memoryview] = ()


class Receive(NamedTuple):
    """One frame to expect, and where its buffers go."""

    connection: Connection
    place: Place | None = None


def transfer(
    sends: Sequence[Send],
    receives: Sequence[Receive],
    deadline: Deadline,
    wake: Wakeup | None = None,
    late: Callable[[tuple[str, ...]], PeerTimeout] | None = None,
) -> list[Message]:
    """Send and receive all of these at once, whatever the order in which peers do their part.

    At most one frame is expected per connection. Returns the received messages in the order of `receives`.
    PeerTimeout (made by `late` from the names, if given) names every peer that was not ready in time.
    """
    for send in sends:
        send.connection.post(send.message, send.buffers)
    received: dict[Connection, Message] = {}
    expected = {receive.connection: receive.place for receive in receives}
    board = Switchboard({send.connection for send in sends} | set(expected), wake)
    readable = list(expected)
    while True:
        for connection in readable:
            if connection not in expected:
                continue  # early for what comes next; read then
            message = connection.try_receive(expected[connection])
            if message is not None:
                received[connection] = message
                del expected[connection]
        unsent = {send.connection for send in sends if send.connection.pending}
        for connection in {send.connection for send in sends} | set(received):
            if connection not in expected and connection not in unsent:
                board.forget(connection)
        if not expected and not unsent:
            return [received[receive.connection] for receive in receives]
        if deadline.passed():
            missing = tuple(sorted({connection.peer for connection in expected} | {c.peer for c in unsent}))
            raise (
                late(missing)
                if late
                else PeerTimeout(missing, f"no transfer with {', '.join(missing)} in time")
            )
        readable = board.wait(deadline)
