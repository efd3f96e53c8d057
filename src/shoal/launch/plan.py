"""From what the user asked for to what will be started. All input is checked here, before anything starts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from shoal.cluster.process_limits import check_processes
from shoal.codecs.words import AUTO, parse_word
from shoal.config import STRATEGIES, TRANSPORTS, Deadlines, Devices, RunConfig, Servers, Transport
from shoal.errors import UsageError
from shoal.launch import environment, logs
from shoal.launch.backend_choice import choose_backend
from shoal.launch.checkpoint_choice import ApartFolders, resumed_by, saving_of
from shoal.launch.companion import CompanionPlan
from shoal.launch.devices.assignment import (
    DeviceAssignment,
    assign,
    environment_of,
    environment_without,
    told,
    workers_for,
)
from shoal.launch.devices.inventory import Inventory
from shoal.launch.devices.reading import for_backend
from shoal.launch.mesh_choice import choose_mesh
from shoal.launch.request import LaunchRequest
from shoal.launch.script import BACKEND, find_script, read_script
from shoal.launch.sizes import nbytes
from shoal.launch.speeds import speeds_of
from shoal.observe.profiled_steps import ProfiledSteps
from shoal.wire import names
from shoal.wire.addresses import TlsAddress, UnixAddress
from shoal.wire.addresses import parse as parse_address

THIS_HOST = "this host"
_EXPORTING = 15.0  # seconds after the run's end in which the last spans are sent
_STALL_PER_SILENCE = 60  # a worker that lives but does not come gets so many times the time of a silent one
_WAITS_FOR_HOSTS = 300.0  # seconds, with `--on-split wait`


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One worker or server to be started."""

    id: str
    cores: tuple[int, ...]  # empty: wherever the system puts it
    environment: Mapping[str, str]  # all of it
    host: str = THIS_HOST  # where it is started


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A run that may be started."""

    config: RunConfig
    workers: tuple[ProcessPlan, ...]  # and the standbys, last
    servers: tuple[ProcessPlan, ...] = ()
    max_restarts: int = 0  # of each of them within an hour
    token: Path | None = None  # where to write what a joining host needs
    preloads: bool = False  # keras may be imported before the script begins
    live: bool = False  # show how it goes on
    companions: tuple[CompanionPlan, ...] = ()  # that nobody needs
    trace: Path | None = None  # where to write one when the run is over

    @property
    def members(self) -> tuple[ProcessPlan, ...]:
        """In the order in which they are started."""
        return *self.workers, *self.servers

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where members are started, each once."""
        return tuple(dict.fromkeys(member.host for member in self.members))

    def preload(self, host: str) -> Mapping[str, str] | None:
        """The environment in which keras is imported there once for all; None where that does not pay or can't be."""
        there = [member for member in self.members if member.host == host]
        return there[0].environment if self.preloads and len(there) > 1 else None


def new_run() -> str:
    """A run's id. Those of this machine sort by when they began."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def make_plan(
    request: LaunchRequest,
    environ: Mapping[str, str],
    cores: tuple[int, ...],
    run: str | None = None,
    here: tuple[str, ...] | None = None,
    inventory: Inventory | None = None,
    apart: ApartFolders | None = None,
) -> LaunchPlan:
    """Check everything and fill in what was left open. UsageError says what to change.

    Who has locked the folder of checkpoints has done it for the run of this id. `here`: the members that are started on
    this host, of a run that has others elsewhere. `inventory`: this host's accelerators. `apart`: where hosts
    have folders of their own for checkpoints.
    """
    request = _with_address(request)
    inventory = inventory or Inventory()
    if request.auto and request.hosts is not None:
        raise UsageError("-n auto counts the devices of this host: with several hosts, say how many workers.")
    if request.auto:
        request = replace(request, workers=_workers_by_devices(request, environ, inventory))
    _check_counts(request)
    _check_hosts(request)
    of_workers = tuple(f"worker-{number}" for number in range(request.workers))
    of_servers = tuple(f"server-{number}" for number in range(request.servers))
    if here is not None:
        of_workers = tuple(id for id in of_workers if id in here)
        of_servers = tuple(id for id in of_servers if id in here)
    check_processes(_counts(request), len(of_workers) + request.standby + len(of_servers), len(cores))
    _check_one_of("strategy", request.strategy, STRATEGIES)
    _check_one_of("transport", request.transport, TRANSPORTS)
    if request.compress is not None:
        parse_word(request.compress, f"--compress {request.compress}")
        if request.strategy == "pipeline":
            raise UsageError(
                f"--compress {request.compress}: what the stages of a pipeline send each other travels as it is. "
                "Leave it out, or train with --strategy allreduce."
            )
    _check_choice(request)
    servers = _servers(request)
    script = find_script(request.script, request.is_module)
    environ = {**environ, BACKEND: request.backend} if request.backend else environ
    reading = read_script(script, request.is_module, environ)
    backend = choose_backend(request.backend, reading, environ)
    inventory = for_backend(inventory, backend, environ)
    standbys = tuple(f"worker-{number}" for number in range(request.workers, request.workers + request.standby))
    standing = (*of_workers, *standbys)
    given = assign(inventory, len(standing), request.devices, request.devices_per_worker, backend)
    threads = request.threads or max(1, len(cores) // max(1, len(of_workers)))
    seed = secrets.randbelow(2**32)
    run = run or new_run()
    resume = resumed_by(request) if apart is None else apart.resume
    config = RunConfig(
        run=run,
        workers=request.workers,
        least=(request.least or 1) if _goes_on(request) else None,
        threads=threads,
        backend=backend,
        script=script,
        arguments=request.arguments,
        is_module=request.is_module,
        pieces=_pieces(request),
        strategy=request.strategy,
        servers=servers,
        compress=request.compress,
        stages=_stages(request),
        speeds=_speeds(request),
        sliced=request.sliced,
        memory=nbytes("--memory", request.memory) if request.memory is not None else None,
        every=_every(request),
        transport=cast(Transport, request.transport),
        address=f"tcp:{request.address}" if request.address else None,
        host=_host(request),
        deadlines=_deadlines(request),
        check_every=request.check_every,
        saving=saving_of(request, run, resume, apart),
        own_folder=apart.own if apart is not None else None,
        resume=str(resume) if resume is not None else None,
        seed=seed,
        epoch=time.time() - time.monotonic(),
        record=request.record,
        profile=_profile(request),
        devices=_devices(inventory, given, standing),
        mesh=choose_mesh(request, backend, given),
        mesh_hosts=request.mesh_hosts,
        trace=request.trace is not None,
        verbose=request.verbose,
        logs=str(Path(request.logs).absolute() if request.logs else logs.home(environ) / run),
    )
    # One worker of which nobody asked otherwise is plain Keras: all cores, all of the backend's own defaults.
    confined = not config.is_single or request.workers > 1 or request.threads is not None
    # With more to do than cores, the system shares them out better than a fixed deal could.
    pinned = confined and len(of_workers) * threads + len(of_servers) <= len(cores)
    preloads = reading.leaves_environment
    # Where keras is not imported beforehand, the script may still choose, and finds its environment as it was.
    own = environment.of_worker({**environ, BACKEND: backend} if preloads else environ, threads, confined, seed)
    return LaunchPlan(
        config,
        workers=tuple(
            ProcessPlan(
                id,
                share(cores, threads, place) if pinned else (),
                own | environment_of(given, place, inventory, environ),
            )
            for place, id in enumerate(standing)
        ),
        servers=tuple(ProcessPlan(id, (), own | environment_without(given)) for id in of_servers),
        max_restarts=0 if config.least is None else request.max_restarts,
        token=_token(request),
        preloads=preloads,
        live=request.live and not config.is_plain,
        companions=_companions(request),
        trace=_trace(request),
    )


def _companions(request: LaunchRequest) -> tuple[CompanionPlan, ...]:
    found = []
    if request.dashboard is not None:
        page = ("shoal.dashboard.process", (str(request.dashboard),))
        found.append(CompanionPlan("dashboard", "the run's page", *page))
    if request.otel:
        if not request.record:
            raise UsageError("--otel sends what members record, and with --no-record they record nothing. Use one.")
        found.append(CompanionPlan("otel", "the exporter of spans", "shoal.otel.process", leaves=_EXPORTING))
    return tuple(found)


def _workers_by_devices(request: LaunchRequest, environ: Mapping[str, str], inventory: Inventory) -> int:
    """`-n auto`."""
    script = find_script(request.script, request.is_module)
    environ = {**environ, BACKEND: request.backend} if request.backend else environ
    backend = choose_backend(request.backend, read_script(script, request.is_module, environ), environ)
    return workers_for(for_backend(inventory, backend, environ), backend)


def _devices(inventory: Inventory, given: DeviceAssignment, members: Sequence[str]) -> Devices | None:
    """What is said of them, if there is anything to say."""
    names = {id: ids for id, ids in zip(members, given.given, strict=False) if ids}
    return Devices(text, given.each, names) if (text := told(inventory, given, members)) else None


def _goes_on(request: LaunchRequest) -> bool:
    """Whether the run goes on after a loss. One worker without servers does not, unless others may join: it is plain
    Keras.
    """
    joined = request.key_file is not None or request.hosts is not None or request.is_task
    several = request.workers > 1 or request.strategy == "ps" or joined
    return not request.fail_fast and several


def _check_choice(request: LaunchRequest) -> None:
    """What `--strategy auto` decides, and what goes with one strategy only."""
    if request.sliced and request.strategy != "allreduce":
        raise UsageError(f"--sliced goes with --strategy allreduce, not with {request.strategy}.")
    if request.memory is not None and request.strategy != "auto":
        raise UsageError(
            f"--memory {request.memory} is what --strategy auto may use of each worker's memory; {request.strategy} "
            "uses what it needs. `shoal plan` says how much that is."
        )
    if request.strategy == "auto" and request.compress is not None:
        raise UsageError(
            f"--compress {request.compress}: --strategy auto chooses among plans whose numbers travel as they are. "
            "Leave it out, or train with --strategy allreduce."
        )


def _speeds(request: LaunchRequest) -> tuple[float, ...]:
    if request.speeds is None:
        return ()
    if request.strategy != "pipeline":
        raise UsageError(
            f"--speeds {request.speeds} is what a pipeline is cut for; {request.strategy} measures the workers' speeds."
        )
    return speeds_of(request.speeds, request.workers)


def _stages(request: LaunchRequest) -> int | None:
    if request.strategy != "pipeline":
        if request.stages is not None:
            raise UsageError(f"--stages {request.stages} goes with --strategy pipeline, not with {request.strategy}.")
        return None
    if request.compress is not None:
        raise UsageError(
            f"--compress {request.compress} is for --strategy allreduce and ps; in a pipeline numbers travel as they "
            "are. Leave it out."
        )
    stages = request.stages or 2
    if stages < 2:
        raise UsageError(f"--stages {stages}: a pipeline has at least 2 stages.")
    if stages > request.workers:
        raise UsageError(
            f"--strategy pipeline with {stages} stages needs at least {stages} workers; -n {request.workers} was asked "
            f"for. Use -n {stages}, or fewer stages."
        )
    return stages


def _pieces(request: LaunchRequest) -> int | None:
    """With strategy local: the replicas, each of which computes a piece of every batch."""
    if request.strategy != "local":
        return request.pieces
    if request.pieces is not None:
        raise UsageError(
            f"--pieces {request.pieces}: with --strategy local a batch has a piece for each replica. Say how many with "
            "--replicas."
        )
    replicas = request.replicas
    if replicas is not None and replicas < 1:
        raise UsageError(f"--replicas {replicas}: expected at least 1.")
    if replicas is not None and replicas < request.workers:
        raise UsageError(
            f"--replicas {replicas} is too few for {request.workers} workers: each hosts at least one. Use --replicas "
            f"{request.workers} or more, or fewer workers."
        )
    return replicas


def _every(request: LaunchRequest) -> int | None:
    if request.every is not None and request.strategy != "local":
        raise UsageError(f"--every {request.every} goes with --strategy local, not with {request.strategy}.")
    if request.every is not None and request.every < 1:
        raise UsageError(f"--every {request.every}: expected a number of steps, at least 1.")
    if request.strategy == "local" and request.compress == AUTO:
        raise UsageError(
            "--compress auto measures what pays from step to step, and with --strategy local there is one exchange in "
            "many. Name the codec: bf16, int8, topk or lowrank."
        )
    return request.every


def _check_counts(request: LaunchRequest) -> None:
    if request.workers < 1:
        raise UsageError(f"-n {request.workers}: a run needs at least 1 worker.")
    if request.least is not None and not 1 <= request.least <= request.workers:
        raise UsageError(
            f"-n {request.least}:{request.workers}: the least number of workers is at least 1 and at most the most."
        )
    if request.max_restarts < 0:
        raise UsageError(f"--max-restarts {request.max_restarts}: expected 0 or more.")
    if request.standby < 0:
        raise UsageError(f"--standby {request.standby}: expected 0 or more workers.")
    if request.standby and not _goes_on(request):
        raise UsageError(
            "--standby needs a run that goes on after a loss: with 2 workers or more, or parameter servers, and "
            "without --fail-fast."
        )
    if request.threads is not None and request.threads < 1:
        raise UsageError(f"--threads {request.threads}: a worker needs at least 1 thread.")
    if request.timeout is not None and not request.timeout > 0:
        raise UsageError(f"--timeout {request.timeout}: expected seconds, more than 0.")
    if not request.stall > 0:
        raise UsageError(f"--stall {request.stall}: expected seconds, more than 0.")
    if request.check_every < 1:
        raise UsageError(f"--check-every {request.check_every}: expected a number of steps, at least 1.")
    if request.pieces is not None and request.pieces < request.workers and request.strategy != "pipeline":
        raise UsageError(
            f"--pieces {request.pieces} is too few for {request.workers} workers: each computes at least one "
            f"piece of a batch. Use --pieces {request.workers} or more, or fewer workers."
        )


def _counts(request: LaunchRequest) -> str:
    """The options that say how many processes there are."""
    given = {"-n": request.workers, "--standby": request.standby, "--servers": request.servers}
    return " ".join(f"{option} {number}" for option, number in given.items() if number)


def _servers(request: LaunchRequest) -> Servers | None:
    """The parameter servers of a run that has some."""
    if request.servers < 0:
        raise UsageError(f"--servers {request.servers}: expected 0 or more servers.")
    if request.strategy != "ps":
        _check_no_servers(request)
        return None
    if request.servers == 0:
        raise UsageError("--strategy ps trains with parameter servers and needs at least one: --servers 1.")
    replicas = min(2, request.servers) if request.replicas is None else request.replicas
    if replicas < 1:
        raise UsageError(f"--replicas {replicas}: expected at least 1.")
    if replicas > request.servers:
        raise UsageError(
            f"--replicas {replicas} is too many for --servers {request.servers}: each replica needs a server of its "
            f"own. Use --replicas {request.servers} or fewer, or --servers {replicas}."
        )
    servers = Servers(request.servers, replicas, _staleness(request.staleness))
    _check_not_yet(request)
    return servers


def _check_no_servers(request: LaunchRequest) -> None:
    """What is for parameter servers was not asked for, either."""
    given = {"servers": request.servers or None, "staleness": request.staleness}
    if request.strategy != "local":  # which has replicas of its own
        given["replicas"] = request.replicas
    missing = "--strategy ps" if request.servers else "--strategy ps --servers 1"
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"--{option} {value} is for training with parameter servers: add {missing}.")


def _staleness(text: str | None) -> int | None:
    if text is None or text == "inf":
        return None
    if not text.isdecimal():
        raise UsageError(f"--staleness {text}: expected 0, a number of updates, or inf for no bound.")
    return int(text)


def _check_not_yet(request: LaunchRequest) -> None:
    """Refuse what parameter servers can't do yet."""
    if request.key_file is not None or (request.address is not None and request.hosts is None):
        raise UsageError(
            "--address and --key-file are for workers that join, which parameter servers can't serve yet: name all "
            "hosts with --hosts, or train without --strategy ps."
        )


def _check_hosts(request: LaunchRequest) -> None:
    if request.hosts is None:
        for option, given in {
            "--sync": request.sync,
            "--remote-python": request.remote_python,
            "--env": request.env,
        }.items():
            if given:
                raise UsageError(f"{option} is for workers on other hosts: name these with --hosts.")
        return
    if request.transport == "shm":
        raise UsageError("workers on several hosts share no memory: leave --transport shm out.")


def _with_address(request: LaunchRequest) -> LaunchRequest:
    """The host by its number, whatever it was called."""
    if request.address is None:
        return request
    host, port = names.host_and_port(request.address)
    return replace(request, address=names.joined(names.own_address(host), port))


def _host(request: LaunchRequest) -> str:
    """The address of this host that workers listen at: the coordinator's. Beyond loopback, only on purpose."""
    if request.address is None:
        if request.key_file is not None:
            raise UsageError(
                "--key-file is for workers that join from elsewhere: say with --address where they find us."
            )
        return "127.0.0.1"
    where = parse_address(f"tcp:{request.address}")
    assert not isinstance(where, UnixAddress)
    if isinstance(where, TlsAddress):
        if request.key_file is None and request.hosts is None and not request.is_task:
            raise UsageError(
                f"--address {request.address} can be reached from other hosts: name a --key-file for those who join."
            )
        if request.transport == "shm":
            raise UsageError("workers on several hosts share no memory: leave --transport shm out.")
    return where.host


def _token(request: LaunchRequest) -> Path | None:
    """Where what a joining host needs is to be written, if somebody can join."""
    if request.key_file is None:
        return None
    asked = f"--key-file {request.key_file}"
    if not _goes_on(request):
        raise UsageError(
            f"{asked} is for workers that join, and nobody can join a run that was started with --fail-fast: leave "
            "--fail-fast out."
        )
    path = Path(request.key_file).absolute()
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{asked}: there is such a file already, and a secret is never written over another. Remove it, or name "
            "another file."
        )
    if not path.parent.is_dir():
        raise UsageError(f"{asked}: there is no folder {path.parent}.")
    return path


def _trace(request: LaunchRequest) -> Path | None:
    """Where the trace is to be written, if somebody wants one."""
    if request.trace is None:
        return None
    if not request.record:
        raise UsageError(f"--trace {request.trace} is made of the record of what members do: leave --no-record out.")
    path = Path(request.trace).absolute()
    if path.is_dir():
        raise UsageError(f"--trace {request.trace} is a folder; name a file in it, such as {path / 'trace.json'}.")
    if not path.parent.is_dir():
        raise UsageError(f"--trace {request.trace}: there is no folder {path.parent}.")
    return path


def _profile(request: LaunchRequest) -> tuple[int, int] | None:
    """The first and the last step to be profiled, if some are."""
    if request.profile is None:
        return None
    try:
        steps = ProfiledSteps.parse(request.profile)
    except ValueError as error:
        raise UsageError(f"--profile {request.profile}: {error}.") from error
    return steps.first, steps.last


def _check_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"--{what} {value}: there is no such {what}; there is {', '.join(known)}.")


def _deadlines(request: LaunchRequest) -> Deadlines:
    waits = {"orphaned": _WAITS_FOR_HOSTS} if request.on_split == "wait" else {}
    if (timeout := request.timeout) is None:
        return Deadlines(remark=request.stall, **waits)
    return Deadlines(silence=timeout, stall=timeout * _STALL_PER_SILENCE, remark=request.stall, **waits)


def share(cores: tuple[int, ...], threads: int, number: int) -> tuple[int, ...]:
    """The cores of one worker, its own; a standby waits on those of another."""
    return tuple(sorted({cores[(number * threads + index) % len(cores)] for index in range(threads)}))
