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


def await_any(
    awaited: Iterable[Connection], unsent: Iterable[Connection], deadline: Deadline, wake: Wakeup | None = None
) -> list[Connection]:
    """Wait until one of `awaited` has something to read; returns those that have.

    Meanwhile what was posted on `unsent` is flushed. Returns nothing when there was only something to flush, or
    when the deadline passed. Raises the wakeup's reason if it is set. Who is not awaited is not looked at: a
    peer that is early, or gone after it said everything, does not keep a wait from sleeping.
    """
    poll = select.poll()
    reading = {connection.fileno(): connection for connection in awaited}
    writing = {connection.fileno(): connection for connection in unsent}
    for fd in reading:
        poll.register(fd, READABLE)
    for fd in writing:
        poll.register(fd, READABLE | WRITABLE if fd in reading else WRITABLE)
    if wake is not None:
        poll.register(wake.fileno(), READABLE)
    ready = poll.poll(milliseconds(deadline))
    if wake is not None:
        wake.check()
    for fd, events in ready:
        if events & ~READABLE and fd in writing:
            writing[fd].flush()
    return [reading[fd] for fd, events in ready if fd in reading and events & ~WRITABLE]


class Sending(NamedTuple):
    """One frame to send."""

    connection: Connection
    message: Message
    buffers: Sequence[memoryview] = ()


class Receive(NamedTuple):
    """One frame to expect, and where its buffers go."""

    connection: Connection
    place: Place | None = None


def transfer(
    sends: Sequence[Sending],
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
    readable = list(expected)
    while True:
        for connection in readable:
            message = connection.try_receive(expected[connection])
            if message is not None:
                received[connection] = message
                del expected[connection]
        unsent = {send.connection for send in sends if send.connection.pending}
        if not expected and not unsent:
            return [received[receive.connection] for receive in receives]
        if deadline.passed():
            missing = tuple(sorted({connection.peer for connection in (*expected, *unsent)}))
            raise late(missing) if late else PeerTimeout(missing, f"no transfer with {', '.join(missing)} in time")
        readable = await_any(expected, unsent, deadline, wake)
