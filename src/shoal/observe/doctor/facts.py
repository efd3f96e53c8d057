"""What rules judge, and what they find."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import TimeUse
from shoal.observe.time_shares import TimeShares, together

WORTH_IT = 0.15  # of the time: less than that is not worth anybody's while


class FindingKind(StrEnum):
    """What is wrong, in a word, for programs."""

    DATA = "data"
    CALLBACKS = "callbacks"
    CHECKPOINTS = "checkpoints"
    COMPILING = "compiling"
    STRAGGLER = "straggler"
    IMBALANCE = "imbalance"
    SMALL_PIECES = "small pieces"
    EXCHANGE = "exchange"
    SERVERS = "servers"
    CORES = "cores"
    MEMORY = "memory"


class WorkerFacts(msgspec.Struct, frozen=True):
    """What is known of a worker."""

    id: str
    host: str
    spent: TimeShares
    memory: int = 0  # resident bytes
    counted: WorkerFigures = WorkerFigures()  # in the same time as `spent`
    threads: int = 1  # that it computes with

    @property
    def seconds(self) -> float:
        """Of training, with what goes on in it."""
        return sum(max(0.0, seconds) for use, seconds in self.spent.seconds.items() if use is not TimeUse.OTHER)

    def share(self, use: TimeUse) -> float:
        return self.spent.share(use)

    def part(self, seconds: float) -> float:
        """What so many seconds are of its time; no more than all."""
        return min(1.0, seconds / self.seconds) if self.seconds else 0.0

    @property
    def starved(self) -> float:
        """The share of its time in which it could have computed, and had no core.

        Threads of its own that take turns on a core lack nothing: together they run all the time.
        """
        idle = max(0.0, self.seconds * self.threads - self.counted.cpu)
        return self.part(min(self.counted.starved, idle) / self.threads)


class RunFacts(msgspec.Struct, frozen=True):
    """What is known of a run."""

    workers: tuple[WorkerFacts, ...]
    pieces: int
    threads: int  # of each worker
    cores: int | None = None  # of this host
    memory: int | None = None  # bytes of this host that may be used
    synchronous: bool = True  # all take every step together: who is late holds up everybody
    servers: int = 0  # on this host
    host: str | None = None  # its name; None: all workers are on it

    @property
    def here(self) -> tuple[WorkerFacts, ...]:
        """The workers on this host."""
        return tuple(worker for worker in self.workers if self.host in (None, worker.host))

    def share(self, use: TimeUse) -> float:
        """Of the time of all workers."""
        return together(worker.spent for worker in self.workers).share(use)

    def most(self, use: TimeUse) -> WorkerFacts:
        """The worker with the largest share of it."""
        return max(self.workers, key=lambda worker: worker.share(use))

    def cost(self, use: TimeUse) -> float:
        """What the run loses by it: if all wait for the slowest, what that one spends."""
        return self.most(use).share(use) if self.synchronous else self.share(use)


class Finding(msgspec.Struct, frozen=True):
    """One thing that costs time, or may end the run."""

    lost: float  # the share of the workers' time that it costs
    what: str  # with the figures behind it
    advice: str
    kind: FindingKind
