"""A real coordinator in a thread, for links to the coordinator that are real too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec

from shoal.clock import Deadline, SystemClock
from shoal.cluster import coordinator_address
from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.coordinator import Coordinator
from shoal.cluster.coordinator_link import CoordinatorLink, link
from shoal.cluster.coordinator_service import CoordinatorService, ServiceLog
from shoal.cluster.identity import Identity
from shoal.cluster.launcher_pipe import LauncherPipe, MemberTold, Spawned
from shoal.cluster.messages import End
from shoal.cluster.view import Nearby, Role
from shoal.config import Deadlines, Servers
from shoal.errors import Refused
from shoal.wire.keys import RunKey

from .scene import IDENTITY, config, member

DEADLINES = Deadlines(silence=1.0, stall=10.0, connect=5.0, orphaned=5.0, start=10.0)
NOBODY = 2**22 + 1  # no process has this id


class Run:
    """A coordinator, and the launcher's end of its launcher's pipe."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        least: int | None = None,
        deadlines: Deadlines = DEADLINES,
        servers: Servers | None = None,
        open_service: Callable[[ServiceLog | None], CoordinatorService] | None = None,
        logs: Path | None = None,
    ) -> None:
        # A link whose run is over ends its process after a while: here that is the one that runs the tests.
        self._patience = mock.patch.object(link, "GRACE", 3600.0)
        self._patience.start()
        self.deadlines = deadlines
        to_coordinator, from_launcher = os.pipe()
        to_launcher, from_coordinator = os.pipe()
        self._fds = [to_coordinator, from_coordinator, to_launcher]
        reader, self._let_go = to_coordinator, from_launcher
        self.key = RunKey.new()
        self.launcher_pipe = LauncherPipe(to_launcher, from_launcher)
        self.folder = folder / "run"
        self.folder.mkdir(exist_ok=True)
        settings = msgspec.structs.replace(config(workers, least=least), deadlines=deadlines, servers=servers)
        settings = msgspec.structs.replace(settings, logs=str(logs) if logs is not None else settings.logs)
        launcher_pipe = LauncherPipe(reader, from_coordinator)
        self.coordinator = Coordinator(settings, self.key, self.folder, launcher_pipe, SystemClock(), open_service)
        self.address = coordinator_address.find(self.folder, Deadline.after(1.0))
        self._thread = threading.Thread(target=self.coordinator.run)
        self._thread.start()
        self.coordinator_links: list[CoordinatorLink] = []
        self.told: list[str] = []
        self.chiefs: list[str] = []  # who was told that it is the chief, in order

    def join(
        self,
        number: int,
        identity: Identity = IDENTITY,
        address: str = "",
        role: Role = "worker",
        nearby: Nearby | None = None,
        clock_offset: ClockOffset | None = None,
    ) -> CoordinatorLink:
        me = msgspec.structs.replace(member(number), id=f"{role}-{number}", role=role, nearby=nearby)
        me = msgspec.structs.replace(me, address=address or me.address)
        on_chief = partial(self.chiefs.append, me.id)
        joined = CoordinatorLink.join(
            self.address, self.key, me, identity, self.deadlines, on_chief=on_chief, clock_offset=clock_offset
        )
        self.coordinator_links.append(joined)
        return joined

    def come_late(
        self, number: int, address: str = "", role: Role = "worker", nearby: Nearby | None = None
    ) -> CoordinatorLink:
        """One that the launcher has started in another's place."""
        self.launcher_pipe.send(Spawned(f"{role}-{number}", NOBODY))
        deadline = Deadline.after(10.0)
        while True:  # what the launcher says and what the worker says come on two ways
            try:
                return self.join(number, address=address, role=role, nearby=nearby)
            except Refused:
                assert not deadline.passed()

    def join_all(self, workers: int) -> list[CoordinatorLink]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.join, range(workers)))

    def end(self) -> End:
        """What the launcher is told at last; before it, reports of losses."""
        while True:
            for message in self.launcher_pipe.receive():
                if isinstance(message, End):
                    return message
                assert isinstance(message, MemberTold)
                self.told.append(message.text)

    def close(self) -> None:
        for joined in self.coordinator_links:
            joined.close()
        self._patience.stop()
        os.close(self._let_go)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.coordinator.close()
        for fd in self._fds:
            os.close(fd)
