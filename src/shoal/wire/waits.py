"""The one way to wait on a descriptor: until it is ready, the deadline passes, or the wakeup is set."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence

from shoal.clock import Deadline
from shoal.wire.wakeup import Wakeup

READABLE = select.POLLIN
WRITABLE = select.POLLOUT


def milliseconds(deadline: Deadline) -> int:
    """What is left, for poll: rounded up, so that a wait never ends just before its deadline."""
    return math.ceil(deadline.left() * 1000)


def wait(fd: int, events: int, deadline: Deadline, wake: Wakeup | None = None) -> bool:
    """True once `fd` is ready, False once the deadline has passed; raises the wakeup's reason if set."""
    return wait_any((fd,), events, deadline, wake)


def wait_any(fds: Sequence[int], events: int, deadline: Deadline, wake: Wakeup | None = None) -> bool:
    """The same for several: True once one of them is ready."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    if wake is not None:
        wake.check()
        poll.register(wake.fileno(), READABLE)
    while True:
        ready = poll.poll(milliseconds(deadline))
        if wake is not None:
            wake.check()
        if any(which in fds for which, _ in ready):
            return True
        if deadline.passed():
            return False
