"""What a worker counts while it trains, for `shoal doctor` and the summary of a run.

On the way of a step it is a few additions: no lock, no system call, nothing that grows with the run. What the system
counts is asked for when somebody wants to know.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import resource
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec

SEPARATOR = " and "  # between the shapes of a batch's tensors
_MOST_CALLBACKS = 8  # of which seconds are told
_MOST_SHAPES = 4
_LONGEST = 80  # characters of a name or a shape
_THREADS = "/proc/self/task"


class WorkerFigures(msgspec.Struct, frozen=True):
    """What a worker has counted: since its first step, or lately."""

    steps: int = 0
    pieces: int = 0  # that it computed with a program that was there already
    rows: int = 0  # in them
    piece_seconds: float = 0.0
    piece_squares: float = 0.0  # the sum of the squares of these seconds
    compilations: int = 0  # of the step, while training went on
    compiling: float = 0.0  # seconds of the pieces that waited for them
    shapes: tuple[str, ...] = ()  # of the last batches that something was compiled for
    callbacks: dict[str, float] = {}  # seconds by the callback's class; the longest
    saving: float = 0.0  # seconds that checkpoints held up the training
    checkpoints: int = 0
    saved: int = 0  # the step of the last checkpoint; 0: there is none
    sent: int = 0  # bytes to other members over sockets
    shared: int = 0  # bytes that were laid where others of the same host read them
    arrived: int = 0  # bytes for which it waited in the middle of a message
    arriving: float = 0.0  # seconds of that
    streams: bool = False  # the chief reads for all
    asynchronous: bool = False  # its updates wait for no other worker's
    starved: float = 0.0  # seconds in which a thread could have run, and there was no core
    cpu: float = 0.0  # seconds that its threads did run
    switches: int = 0  # times that a core was taken away
    faults: int = 0  # pages that had to come from disk
    spared: int = 0  # bytes that a codec, or rounds of several steps, have kept from sockets
    aged: int = 0  # updates of an asynchronous training: a worker's own, or those that a server applied
    staleness: int = 0  # the sum of theirs: updates of another worker that their weights lacked

    def since(self, earlier: WorkerFigures) -> WorkerFigures:
        """What has come after an earlier look at the same worker."""
        numbers = {name: max(0, getattr(self, name) - getattr(earlier, name)) for name in _NUMBERS}
        callbacks = {name: all_of - earlier.callbacks.get(name, 0.0) for name, all_of in self.callbacks.items()}
        return msgspec.structs.replace(self, callbacks=callbacks, **numbers)

    @property
    def staleness_mean(self) -> float | None:
        """Of an update; None where nothing was updated asynchronously."""
        return self.staleness / self.aged if self.aged else None

    @property
    def piece_mean(self) -> float:
        """Seconds of a piece."""
        return self.piece_seconds / self.pieces if self.pieces else 0.0

    @property
    def piece_spread(self) -> float:
        """The standard deviation of a piece's seconds, as a part of their mean: about 0 if they take equally long."""
        if not self.piece_seconds:
            return 0.0
        variance = self.piece_squares / self.pieces - self.piece_mean**2
        return float(max(0.0, variance) ** 0.5) / self.piece_mean


# What is counted on and on: `since` subtracts it, `summed` adds it up.
_NUMBERS = (
    *("steps", "pieces", "rows", "piece_seconds", "piece_squares", "compilations", "compiling", "saving"),
    *("checkpoints", "sent", "shared", "arrived", "arriving", "starved", "cpu", "switches", "faults", "spared"),
    *("aged", "staleness"),
)


def summed(workers: Iterable[WorkerFigures]) -> WorkerFigures:
    """Of several workers. Steps and checkpoints are what they did together: those of the first are told."""
    everyone = list(workers)
    if not everyone:
        return WorkerFigures()
    numbers = {name: sum(getattr(one, name) for one in everyone) for name in _NUMBERS}
    first = {name: getattr(everyone[0], name) for name in ("steps", "checkpoints")}
    return msgspec.structs.replace(everyone[0], **(numbers | first))


class Traffic:
    """What a worker has sent to others."""

    def __init__(self) -> None:
        self.sent = 0  # bytes over sockets
        self.spared = 0  # bytes more that they would have been as they are, and after every step
        self.shared = 0  # bytes through shared memory
        self.arrived = 0  # bytes for which it waited in the middle of a message
        self.arriving = 0.0  # seconds of that: what they took to come


class Counters:
    """The counters of one worker. One thread counts, any thread may ask for the figures."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.callbacks: dict[str, float] = {}  # seconds by class
        self.staleness: Counter[int] = Counter()  # how many updates had it; whoever trains or serves adds to it
        self.streams = False
        self.asynchronous = False
        self._steps = 0
        self._pieces, self._rows, self._seconds, self._squares = 0, 0, 0.0, 0.0
        self._compilations, self._compiling = 0, 0.0
        self._shapes: deque[str] = deque(maxlen=_MOST_SHAPES)
        self._saving = 0.0
        self._checkpoints, self._saved = 0, 0
        self._before: SystemFigures | None = None  # what the system had counted before the first piece

    @property
    def steps(self) -> int:
        """That were committed."""
        return self._steps

    def step(self) -> None:
        """A step was committed."""
        self._steps += 1

    def piece(self, rows: int, seconds: float) -> None:
        """A piece was computed."""
        if self._before is None:
            self._before = SystemFigures.now()
        self._pieces += 1
        self._rows += rows
        self._seconds += seconds
        self._squares += seconds * seconds

    def compiled(self, shape: str, seconds: float) -> None:
        """A piece had to wait until the step was compiled for its shape."""
        self._compilations += 1
        self._compiling += seconds
        self._shapes.append(shape[:_LONGEST])

    @contextlib.contextmanager
    def checkpointing(self) -> Iterator[None]:
        """While the training waits for a checkpoint."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._saving += time.perf_counter() - begun

    def checkpoint(self, step: int) -> None:
        """There is one more."""
        self._checkpoints += 1
        self._saved = step

    def figures(self) -> WorkerFigures:
        system = SystemFigures.now().since(self._before) if self._before is not None else SystemFigures()
        traffic, staleness = self.traffic, dict.copy(self.staleness)  # another thread may add to it
        longest = heapq.nlargest(_MOST_CALLBACKS, self.callbacks.copy().items(), key=lambda item: item[1])
        return WorkerFigures(
            self._steps,
            self._pieces,
            self._rows,
            self._seconds,
            self._squares,
            self._compilations,
            self._compiling,
            tuple(dict.fromkeys(self._shapes.copy())),
            {name[:_LONGEST]: seconds for name, seconds in longest},
            self._saving,
            self._checkpoints,
            self._saved,
            traffic.sent,
            traffic.shared,
            traffic.arrived,
            traffic.arriving,
            self.streams,
            self.asynchronous,
            system.starved,
            system.cpu,
            system.switches,
            system.faults,
            traffic.spared,
            sum(staleness.values()),
            sum(updates * each for each, updates in staleness.items()),
        )


class SystemFigures(msgspec.Struct, frozen=True):
    """What the system counts of this process."""

    starved: float = 0.0
    cpu: float = 0.0
    switches: int = 0
    faults: int = 0

    @classmethod
    def now(cls) -> SystemFigures:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(_seconds_without_core(), usage.ru_utime + usage.ru_stime, usage.ru_nivcsw, usage.ru_majflt)

    def since(self, earlier: SystemFigures) -> SystemFigures:
        # Of threads that have ended nothing is told any more.
        return SystemFigures(
            max(0.0, self.starved - earlier.starved),
            self.cpu - earlier.cpu,
            self.switches - earlier.switches,
            self.faults - earlier.faults,
        )


def _seconds_without_core() -> float:
    """That threads of this process were ready to run, and others ran. 0 where the system does not say."""
    waited = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(_THREADS):  # in few steps: some processes have many threads
            with contextlib.suppress(OSError, IndexError, ValueError):
                fd = os.open(f"{_THREADS}/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    waited += int(os.read(fd, 80).split()[1])
                finally:
                    os.close(fd)
    return waited / 1e9
