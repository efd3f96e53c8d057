"""A run's settings. They enter once, at the door (the command line), and travel as one frozen value."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import msgspec

Backend = Literal["jax", "tensorflow", "torch"]
Transport = Literal["auto", "shm", "tcp"]

BACKENDS: tuple[str, ...] = ("jax", "tensorflow", "torch")
STRATEGIES: tuple[str, ...] = ("allreduce", "ps", "pipeline", "local", "auto")
TRANSPORTS: tuple[str, ...] = ("auto", "shm", "tcp")

CHECK_EVERY = 100
RUN_FILE = "run.json"  # in the run's folder


class Deadlines(msgspec.Struct, frozen=True):
    """How long each kind of wait may last, in seconds."""

    silence: float = 5.0  # a member that neither speaks nor works for this long is lost
    stall: float = 300.0  # a member that is alive but does not come to an exchange
    connect: float = 20.0  # one connection and its handshake
    orphaned: float = 20.0  # without a coordinator, until another one has come
    start: float = 300.0  # from the launch until every member has joined
    remark: float = 5.0  # after which the user is told who is waited for in an exchange


class Saving(msgspec.Struct, frozen=True):
    """Where, how often and under which name checkpoints are written."""

    folder: str
    every: str = "5m"
    keep: int = 3
    run: str = ""  # the run's id
    training: str | None = None  # of the run that this one goes on from, or that one from, if there is any


class Servers(msgspec.Struct, frozen=True):
    """The parameter servers of a run."""

    count: int
    replicas: int  # of every shard
    staleness: int | None  # None: no bound


class Devices(msgspec.Struct, frozen=True):
    """The devices of the launcher's host: accelerators, or virtual ones of its CPU; and who has which."""

    found: str  # for people
    each: int  # per worker
    given: dict[str, tuple[str, ...]]  # by member


class RunConfig(msgspec.Struct, frozen=True):
    """Everything that the members of a run must agree on before it starts."""

    run: str  # the run's id, unique on this machine
    workers: int
    threads: int  # per worker; part of the numeric identity
    backend: Backend
    script: str  # a path, or a module's name when `is_module`
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    least: int | None = None  # with fewer workers than this no step begins; None: the first loss ends the run
    pieces: int | None = None  # None: the number of workers at the start; with strategy local, replicas
    strategy: str = "allreduce"
    servers: Servers | None = None  # with strategy ps
    compress: str | None = None  # the codec of gradients; None: as they are
    stages: int | None = None  # with strategy pipeline
    speeds: tuple[float, ...] = ()  # the same: of the workers by rank, where they are unequal
    sliced: bool = False  # each worker updates a slice of the weights
    memory: int | None = None  # bytes that each worker may use, with strategy auto; None: its part of what is free
    every: int | None = None  # with strategy local: steps between two exchanges
    transport: Transport = "auto"
    address: str | None = None  # where the coordinator listens; None: a unix socket in the run's folder
    host: str = "127.0.0.1"  # where the workers of this host listen, unless all share memory
    deadlines: Deadlines = Deadlines()
    seed: int = 0  # of the random numbers that a script draws without a seed: the same on all workers
    verbose: bool = False
    logs: str = ""  # folder of the per-worker logs
    saving: Saving | None = None  # None: no checkpoints
    resume: str | None = None  # the checkpoint to go on from
    own_folder: str | None = None  # None: all hosts see one folder of checkpoints; else whose this process writes to
    check_every: int = CHECK_EVERY  # steps between two comparisons of the workers' weights
    epoch: float = 0.0  # seconds since the epoch when the monotonic clock of the launcher's host stood at 0
    record: bool = True  # keep one of what members do
    profile: tuple[int, int] | None = None  # the first and the last step that backends look at
    devices: Devices | None = None  # None: each worker computes on the CPU
    mesh: str | None = None  # how a worker uses its devices, if they are several; part of the numeric identity
    mesh_hosts: int = 1  # processes of each worker, whose devices compute its pieces together; the same
    trace: bool = False  # somebody wants all of the record, not only the last of it

    @property
    def is_single(self) -> bool:
        """One process executes the script, now and later: nobody is replaced, and nobody can join."""
        return self.workers == 1 and self.servers is None and self.least is None

    @property
    def is_plain(self) -> bool:
        """One worker and device, now and later, and nothing to write or to go on from: Keras does it all."""
        asked = self.mesh is None and self.saving is None and self.resume is None and self.strategy != "local"
        return self.is_single and asked

    @property
    def is_on_one_host(self) -> bool:
        """Whether all workers share memory: they were told to, or nobody can come from elsewhere."""
        return self.transport == "shm" or (self.transport == "auto" and ip_address(self.host).is_loopback)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def save(self, folder: Path) -> None:
        (folder / RUN_FILE).write_bytes(self.encoded())

    @classmethod
    def load(cls, folder: Path) -> RunConfig:
        return msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=cls)
