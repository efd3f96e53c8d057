"""What the user asked for, before anything of it was checked."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.launch.remote.host_list import HostSlots


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the user asked for. None: the user left it to us."""

    workers: int
    script: str
    least: int | None = None
    auto: bool = False  # as many workers as the host's devices call for, whatever `workers` says
    devices: str | None = None  # a number for each worker, or lists of them
    devices_per_worker: int | None = None
    mesh: str | None = None  # how a worker uses them
    mesh_hosts: int = 1  # processes of each worker
    fail_fast: bool = False
    max_restarts: int = 3
    standby: int = 0
    checkpoint: str | None = None
    checkpoint_every: str = "5m"
    keep: int = 3
    resume: str | None = None
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    backend: str | None = None
    pieces: int | None = None
    threads: int | None = None
    strategy: str = "allreduce"
    stages: int | None = None
    speeds: str | None = None  # of the workers, with strategy pipeline
    sliced: bool = False
    memory: str | None = None  # of each worker, with strategy auto
    every: int | None = None
    servers: int = 0
    staleness: str | None = None  # a number, or inf
    replicas: int | None = None
    compress: str | None = None
    transport: str = "auto"
    address: str | None = None
    key_file: str | None = None
    timeout: float | None = None
    stall: float = 5.0
    check_every: int = 100
    logs: str | None = None
    verbose: bool = False
    profile: str | None = None  # of these steps
    record: bool = True  # keep one of what members do
    trace: str | None = None  # the file to write one to
    live: bool = False  # show how it goes on
    dashboard: int | None = None  # the port of the run's page; 0: a free one
    hosts: tuple[HostSlots, ...] | None = None  # None: this one
    is_task: bool = False  # one of several that somebody else has started: the others will come
    ray: str | None = None  # the address of the Ray cluster that has them
    by_srun: bool = False  # they are nodes of a Slurm allocation
    on_split: str = "first"  # what half of the hosts does that can't reach the other: first, wait, or a command
    sync: bool = False  # copy the script's folder to them
    remote_python: str | None = None  # the one that has Shoal there
    env: tuple[str, ...] = ()  # variables that their workers get, besides the usual ones
    otel: bool = False  # send what members do as spans
