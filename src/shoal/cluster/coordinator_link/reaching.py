"""How a member reaches the coordinator, also when that has just died and another is started in its place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from shoal.clock import Deadline
from shoal.cluster.messages import FROM_COORDINATOR
from shoal.errors import PeerClosed, PeerTimeout
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey

PAUSE = 0.02  # seconds between two attempts

Reach = Callable[[Deadline], Connection]


class CoordinatorWhereabouts:
    """Where the coordinator was found last. `find`: where it is said to be; None: it stays where it is."""

    def __init__(self, address: str, find: Callable[[Deadline], str] | None) -> None:
        self._address = address
        self._find = find

    def look(self, deadline: Deadline) -> str:
        """For it; waits until somebody has said where it is. PeerTimeout."""
        if self._find is not None:
            self._address = self._find(deadline)
        return self._address

    def have_changed(self) -> bool:
        """Whether it is said to be elsewhere by now. Does not wait."""
        if self._find is None:
            return False
        try:
            return self._find(Deadline.after(0.0)) != self._address
        except (PeerTimeout, OSError):
            return False  # it is being written, or nobody knows


def reach(address: str, key: RunKey, silence: float, deadline: Deadline) -> Connection:
    """A connection that gives up on a coordinator from which nothing is heard for `silence` seconds."""
    connection = connect(address, key, FROM_COORDINATOR, deadline)
    connection.peer = "coordinator"
    connection.give_up_after(silence)
    return connection


def reach_patiently(reach: Reach, deadline: Deadline) -> Connection:
    """For one who comes when the coordinator has just died: another is started in its place, if the launcher lives."""
    launcher = os.getppid()
    while True:
        try:
            return reach(deadline)
        except PeerClosed:
            if deadline.passed() or os.getppid() != launcher:
                raise
            time.sleep(PAUSE)
