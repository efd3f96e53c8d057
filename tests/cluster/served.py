"""A real coordinator in a thread, for seats that are real too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from shoal.clock import Deadline, SystemClock
from shoal.cluster import meeting
from shoal.cluster.coordinator import Coordinator
from shoal.cluster.department import Department
from shoal.cluster.identity import Identity
from shoal.cluster.leash import Leash, Spawned, Told
from shoal.cluster.member import Seat
from shoal.cluster.messages import End
from shoal.cluster.view import Role
from shoal.config import Deadlines, Servers
from shoal.errors import Refused
from shoal.wire.keys import RunKey

from .scene import IDENTITY, config, member

DEADLINES = Deadlines(silence=1.0, stall=10.0, connect=5.0, start=10.0)
NOBODY = 2**22 + 1  # no process has this id


class Run:
    """A coordinator, and the launcher's end of its leash."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        least: int | None = None,
        deadlines: Deadlines = DEADLINES,
        servers: Servers | None = None,
        open_department: Callable[[bytes | None], Department] | None = None,
    ) -> None:
        self.deadlines = deadlines
        to_coordinator, from_launcher = os.pipe()
        to_launcher, from_coordinator = os.pipe()
        self._fds = [to_coordinator, from_coordinator, to_launcher]
        reader, self._let_go = to_coordinator, from_launcher
        self.key = RunKey.new()
        self.leash = Leash(to_launcher, from_launcher)
        self.folder = folder / "run"
        self.folder.mkdir()
        settings = msgspec.structs.replace(config(workers, least=least), deadlines=deadlines, servers=servers)
        leash = Leash(reader, from_coordinator)
        self.coordinator = Coordinator(settings, self.key, self.folder, leash, SystemClock(), open_department)
        self.address = meeting.find(self.folder, Deadline.after(1.0))
        self._thread = threading.Thread(target=self.coordinator.run)
        self._thread.start()
        self.seats: list[Seat] = []
        self.told: list[str] = []
        self.chiefs: list[str] = []  # who was told that it is the chief, in order

    def join(self, number: int, identity: Identity = IDENTITY, address: str = "", role: Role = "worker") -> Seat:
        me = msgspec.structs.replace(member(number), id=f"{role}-{number}", role=role)
        me = msgspec.structs.replace(me, address=address or me.address)
        on_chief = partial(self.chiefs.append, me.id)
        seat = Seat.join(self.address, self.key, me, identity, self.deadlines, on_chief=on_chief)
        self.seats.append(seat)
        return seat

    def come_late(self, number: int, address: str = "", role: Role = "worker") -> Seat:
        """One that the launcher has started in another's place."""
        self.leash.send(Spawned(f"{role}-{number}", NOBODY))
        deadline = Deadline.after(10.0)
        while True:  # what the launcher says and what the worker says come on two ways
            try:
                return self.join(number, address=address, role=role)
            except Refused:
                assert not deadline.passed()

    def join_all(self, workers: int) -> list[Seat]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.join, range(workers)))

    def end(self) -> End:
        """What the launcher is told at last; before it, reports of losses."""
        while True:
            for message in self.leash.receive():
                if isinstance(message, End):
                    return message
                assert isinstance(message, Told)
                self.told.append(message.text)

    def close(self) -> None:
        for seat in self.seats:
            seat.close()
        os.close(self._let_go)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.coordinator.close()
        for fd in self._fds:
            os.close(fd)
