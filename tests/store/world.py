"""Processes that talk over streams, and may be stopped or killed: seeded, with a time of its own.

Streams keep their order, as sockets do. What is on its way is lost when a connection breaks, and may be when a process
is killed. Connections to the coordinator break only when it dies.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

LATENCY = 0.001  # seconds, on average
LATE = 0.1  # seconds, at most, by which a late message is held up, and all that follow it
COORDINATOR = "coordinator"


@dataclass
class Process:
    """Something that hears."""

    id: str
    stopped_until: float = 0.0
    given_up_until: float = 0.0  # stopped for so long that it is lost

    def hear(self, sender: str, *said: Any) -> None:
        raise NotImplementedError

    def reconnected(self, peer: str) -> None:
        raise NotImplementedError


class World:
    """Time, and connections between processes. `late` and `repeated` are probabilities per message."""

    def __init__(self, seed: int, late: float, repeated: float) -> None:
        self.time = 0.0
        self.random = random.Random(seed)
        self.processes: dict[str, Process] = {}
        self._late = late
        self._repeated = repeated
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrival: dict[tuple[str, str], float] = {}  # streams keep their order
        self._links: Counter[frozenset[str]] = Counter()  # how often each connection was made anew
        self._down: set[frozenset[str]] = set()

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.time + seconds, act)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        while not until():
            if not self._agenda or self._agenda[0][0] > limit:
                return False
            self.time, _, act = heapq.heappop(self._agenda)
            act()
        return True

    def send(self, sender: str, to: str, *said: Any) -> None:
        """To a process's `hear`, if the connection holds until then."""
        link = frozenset((sender, to))
        if link in self._down:
            return
        delay = self.random.expovariate(1 / LATENCY)
        if self.random.random() < self._late:
            delay += self.random.uniform(0.0, LATE)
        stream = (sender, to)
        moment = max(self._arrival.get(stream, 0.0), self.time + delay)
        self._arrival[stream] = moment
        for _ in range(2 if COORDINATOR not in link and self.random.random() < self._repeated else 1):
            self.at(moment, partial(self._arrive, self._links[link], sender, to, said))

    def _arrive(self, number: int, sender: str, to: str, said: tuple[Any, ...]) -> None:
        if self._links[frozenset((sender, to))] == number and to in self.processes:
            self.awake(to, partial(self._hand_over, number, sender, to, said))

    def _hand_over(self, number: int, sender: str, to: str, said: tuple[Any, ...]) -> None:
        if self._links[frozenset((sender, to))] == number:
            self.processes[to].hear(sender, *said)

    def awake(self, id: str, act: Callable[[], None]) -> None:
        """A stopped process does what it has to do later; a dead one never."""
        process = self.processes.get(id)
        if process is not None and self.time < process.stopped_until:
            self.at(process.stopped_until, partial(self.awake, id, act))
        elif process is not None:
            act()

    def cut(self, one: str, other: str, seconds: float) -> None:
        link = frozenset((one, other))
        if one not in self.processes or other not in self.processes or link in self._down or len(link) == 1:
            return
        self._links[link] += 1
        self._down.add(link)
        self.after(seconds, partial(self._mend, one, other))

    def _mend(self, one: str, other: str) -> None:
        self._down.discard(frozenset((one, other)))
        for here, there in ((one, other), (other, one)):
            if here in self.processes and there in self.processes:
                self.awake(here, partial(self.processes[here].reconnected, there))

    def end(self, id: str) -> None:
        """A process is killed. What it had sent may still arrive, or not."""
        del self.processes[id]
        for other in (*self.processes, COORDINATOR):
            if self.random.random() < 0.5:
                self._links[frozenset((id, other))] += 1

    def replace(self, process: Process) -> None:
        """Another process comes in the place of one that was killed. Whatever is still on its way is lost."""
        for other in self.processes:
            self._links[frozenset((process.id, other))] += 1
        self.processes[process.id] = process
