"""Worker groups inside one process: a real coordinator, and for every worker a thread, a link to it, a listener and a
worker group.

A worker dies by raising Dies: what a killed process would let go of is let go of, all at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.served import Run

from shoal.clock import Deadline
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.view import Nearby, View
from shoal.collectives.group import AbstractGroup, Result, WorkerGroup, form
from shoal.config import Deadlines, Transport
from shoal.wire import Listener, Wakeup

PATIENT = Deadlines(silence=2.0, stall=20.0, connect=5.0, orphaned=5.0, start=20.0)
DEAD = "dead"


class Dies(BaseException):
    """The worker is killed here."""


class Mate:
    """One worker of a crew."""

    def __init__(self, crew: Crew, number: int, late: bool = False) -> None:
        self.id = f"worker-{number}"
        self._crew = crew
        own_host, key = f"unix:{crew.folder}/{number}.sock", crew.run.key
        self._listener = Listener(own_host if crew.transport == "shm" else "tcp:127.0.0.1:0", key)
        self._nearby = Listener(own_host, key) if crew.hosts else None
        place = Nearby(crew.hosts[number], own_host) if crew.hosts else None
        take = crew.run.come_late if late else crew.run.join
        self.coordinator_link: CoordinatorLink = take(number, address=self._listener.address, nearby=place)
        self.waits: list[str] = []  # what it said it waits for
        self.waiting = threading.Event()
        patience = crew.run.deadlines.stall
        self.worker_group = WorkerGroup(
            self.id, self.coordinator_link, self._form, patience, crew.lasting, on_wait=self._wait
        )

    def _form(self, view: View, wakeup: Wakeup) -> AbstractGroup:
        run = self._crew.run
        word: Transport = "auto" if self._crew.hosts else self._crew.transport
        more = (run.deadlines, wakeup, self._exchange, self._nearby)
        return form(view, self.id, self._listener, run.key, word, *more)

    def _exchange(self, waiting: bool, waited: float) -> None:
        self.coordinator_link.recorder.exchange(waiting)

    def _wait(self, for_what: str) -> None:
        self.waits.append(for_what)
        self.waiting.set()

    def wait_view(self, number: int) -> None:
        """Until this view, or a later one, is known to this worker."""
        self.coordinator_link.wait_view(number - 1, Deadline.after(10.0), f"view {number} did not come")

    def gather(self, what: str = "a value", value: bytes | None = None) -> Result:
        """The simplest act: everyone's value, by rank."""
        return self.worker_group.commit(gathering(what, self.id.encode() if value is None else value))

    def die(self) -> None:
        self.worker_group.close()
        self._listener.close()
        if self._nearby is not None:
            self._nearby.close()
        self.coordinator_link.close()


class Crew:
    """Some workers of a run that goes on after a loss."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        transport: Transport = "shm",
        least: int | None = 1,
        deadlines: Deadlines = PATIENT,
        hosts: str = "",
    ) -> None:
        """`hosts`: one letter per worker says on which host it is; then the transport is chosen by that."""
        self.hosts = hosts
        self.folder = folder
        self.transport: Transport = "tcp" if hosts else transport
        self.lasting = least is not None
        self.run = Run(folder, workers, least, deadlines)
        with ThreadPoolExecutor(workers) as pool:
            self.mates = dict(enumerate(pool.map(lambda number: Mate(self, number), range(workers))))

    def come_late(self, number: int) -> Mate:
        """A worker in the place of one that died."""
        self.mates[number] = Mate(self, number, late=True)
        return self.mates[number]

    def play(self, scenes: Mapping[int, Callable[[Mate], Any]]) -> dict[int, Any]:
        """Play each worker's scene, all at once; results by number, exceptions as values."""
        results: dict[int, Any] = {}

        def play(number: int) -> None:
            mate = self.mates[number]
            try:
                results[number] = scenes[number](mate)
            except Dies:
                mate.die()
                results[number] = DEAD
            except BaseException as error:  # RunEnded too: every end of a scene is a result
                results[number] = error

        threads = [threading.Thread(target=play, args=(number,)) for number in scenes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a worker hangs"
        return results

    def play_alike(self, scene: Callable[[Mate], Any]) -> dict[int, Any]:
        return self.play(dict.fromkeys(self.mates, scene))

    def close(self) -> None:
        for mate in self.mates.values():
            mate.die()
        self.run.close()


def gathering(what: str, value: bytes) -> Callable[[AbstractGroup], Result]:
    return lambda group: Result(group.gather(what, value), [])


def dying(group: AbstractGroup) -> Result:
    """An act in the middle of which its worker is killed."""
    raise Dies
