"""From what the user asked for to what will be started. All input is checked here, before anything starts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import cast

from shoal.checkpoint.schedule import parse
from shoal.config import BACKENDS, STRATEGIES, TRANSPORTS, Backend, Deadlines, RunConfig, Saving, Servers, Transport
from shoal.errors import BadCheckpoint, UsageError
from shoal.launch import environment
from shoal.wire.addresses import TlsAddress, UnixAddress
from shoal.wire.addresses import parse as parse_address

# Keras's own default comes first.
_BACKEND_ORDER = ("tensorflow", "jax", "torch")
# Sets or removes a variable, or says which backend; reading others is no matter.
_CHANGES_ENVIRONMENT = re.compile(
    r"environ\s*(\[[^]]*\]\s*=[^=]|\.(setdefault|update|pop|clear)\b|\|=)|del\s.*environ|putenv|dotenv|KERAS_BACKEND"
)
_STALL_PER_SILENCE = 60  # a worker that lives but does not come gets so many times the time of a silent one


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. None: the user left it to us."""

    workers: int
    script: str
    least: int | None = None
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
    servers: int = 0
    staleness: str | None = None  # a number, or inf
    replicas: int | None = None
    transport: str = "shm"
    address: str | None = None
    key_file: str | None = None
    timeout: float | None = None
    check_every: int = 100
    logs: str | None = None
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One worker or server to be started."""

    id: str
    cores: tuple[int, ...]  # empty: wherever the system puts it
    environment: Mapping[str, str]  # all of it


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that may be started."""

    config: RunConfig
    workers: tuple[ProcessPlan, ...]  # and the standbys, last
    servers: tuple[ProcessPlan, ...] = ()
    max_restarts: int = 0  # of each of them within an hour
    ticket: Path | None = None  # where to write what a joining host needs
    preloads: bool = False  # keras may be imported before the script begins


def make_plan(request: Request, environ: Mapping[str, str], cores: tuple[int, ...]) -> Plan:
    """Check everything and fill in what was left open. UsageError says what to change."""
    _check_counts(request)
    _check_one_of("strategy", request.strategy, STRATEGIES)
    _check_one_of("transport", request.transport, TRANSPORTS)
    servers = _servers(request)
    script = find_script(request.script, request.is_module)
    backend = _choose_backend(request.backend, environ)
    threads = request.threads or max(1, len(cores) // request.workers)
    seed = secrets.randbelow(2**32)
    run = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    config = RunConfig(
        run=run,
        workers=request.workers,
        least=(request.least or 1) if _goes_on(request) else None,
        threads=threads,
        backend=backend,
        script=script,
        arguments=request.arguments,
        is_module=request.is_module,
        pieces=request.pieces,
        strategy=request.strategy,
        servers=servers,
        transport=cast(Transport, request.transport),
        address=f"tcp:{request.address}" if request.address else None,
        host=_host(request),
        deadlines=_deadlines(request.timeout),
        check_every=request.check_every,
        saving=_saving(request, run),
        resume=_resume(request),
        seed=seed,
        verbose=request.verbose,
        logs=str(Path(request.logs).absolute() if request.logs else _default_logs(environ) / run),
    )
    # One worker of which nobody asked otherwise is plain Keras: all cores, all of the backend's own defaults.
    confined = request.workers > 1 or request.threads is not None or servers is not None
    # With more to do than cores, the system shares them out better than a fixed deal could.
    pinned = confined and request.workers * threads + request.servers <= len(cores)
    own = environment.of_worker(environ, backend, threads, confined, seed)
    return Plan(
        config,
        workers=tuple(
            ProcessPlan(f"worker-{number}", _share(cores, threads, number) if pinned else (), own)
            for number in range(request.workers + request.standby)
        ),
        servers=tuple(ProcessPlan(f"server-{number}", (), own) for number in range(request.servers)),
        max_restarts=0 if config.least is None else request.max_restarts,
        ticket=Path(request.key_file).absolute() if request.key_file else None,
        preloads=_leaves_environment(script, request.is_module),
    )


def _goes_on(request: Request) -> bool:
    """Whether the run goes on after a loss. One worker without servers does not: it is plain Keras."""
    return not request.fail_fast and (request.workers > 1 or request.strategy == "ps")


def _check_counts(request: Request) -> None:
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
    if request.check_every < 1:
        raise UsageError(f"--check-every {request.check_every}: expected a number of steps, at least 1.")
    if request.pieces is not None and request.pieces < request.workers:
        raise UsageError(
            f"--pieces {request.pieces} is too few for {request.workers} workers: each computes at least one "
            f"piece of a batch. Use --pieces {request.workers} or more, or fewer workers."
        )


def _servers(request: Request) -> Servers | None:
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


def _check_no_servers(request: Request) -> None:
    """What is for parameter servers was not asked for, either."""
    given = {"servers": request.servers or None, "staleness": request.staleness, "replicas": request.replicas}
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


def _check_not_yet(request: Request) -> None:
    """Refuse what parameter servers can't do yet."""
    if request.address is not None or request.key_file is not None:
        raise UsageError(
            "--address and --key-file are for workers on other hosts, which parameter servers can't serve yet: leave "
            "them out, or train without --strategy ps."
        )


def _host(request: Request) -> str:
    """The address of this host that workers listen at: the coordinator's. Beyond loopback, only on purpose."""
    if request.address is None:
        if request.key_file is not None:
            raise UsageError(
                "--key-file is for workers that join from elsewhere: say with --address where they find us."
            )
        return "127.0.0.1"
    where = parse_address(f"tcp:{request.address}")
    if isinstance(where, UnixAddress):
        raise UsageError(f"--address {request.address}: expected HOST:PORT.")
    if isinstance(where, TlsAddress):
        if request.key_file is None:
            raise UsageError(
                f"--address {request.address} can be reached from other hosts: name a --key-file for those who join."
            )
        if request.transport != "tcp":
            raise UsageError("workers on several hosts share no memory: add --transport tcp.")
    return where.host


def _saving(request: Request, run: str) -> Saving | None:
    """Where checkpoints go. Not among another training's: the newest of those might be taken for this one's."""
    parse(request.checkpoint_every)
    if request.keep < 1:
        raise UsageError(f"--keep {request.keep}: expected at least 1 checkpoint.")
    if request.checkpoint is None:
        return None
    from shoal.checkpoint.drafts import checkpoints

    folder = Path(request.checkpoint).absolute()
    if request.resume is None and checkpoints(folder):
        raise UsageError(
            f"{folder} holds checkpoints already. Go on from them with --resume auto, or name another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't make {folder} for checkpoints: {error.strerror}") from error
    return Saving(str(folder), request.checkpoint_every, request.keep, run)


def _resume(request: Request) -> str | None:
    """The checkpoint to go on from. What is torn is passed over, and named."""
    if request.resume is None:
        return None
    from shoal.checkpoint.read import newest_whole, verify  # brings numpy, which the command line can do without

    if request.resume != "auto":
        path = Path(request.resume).absolute()
        try:
            verify(path)
        except BadCheckpoint as error:
            raise UsageError(f"can't resume: {error}") from error
        return str(path)
    if request.checkpoint is None:
        raise UsageError("--resume auto looks for the newest checkpoint in the folder of --checkpoint: name one.")
    found, skipped = newest_whole(Path(request.checkpoint).absolute())
    for path, why in skipped:
        print(f"shoal: {path} is passed over: {why}", file=sys.stderr)
    start = f"going on from {found}" if found else "there is no checkpoint yet, starting from the beginning"
    print(f"shoal: {start}", file=sys.stderr)
    return str(found) if found else None


def _check_one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"--{what} {value}: there is no such {what}; there is {', '.join(known)}.")


def find_script(script: str, is_module: bool) -> str:
    """The script's absolute path, or the module's name, once it is sure that there is one."""
    if is_module:
        _find_module(script)
        return script
    return _check_script(script)


def _leaves_environment(script: str, is_module: bool) -> bool:
    """Whether the script, as far as its text tells, does not change what the backends read when they are imported."""
    path = Path((_find_module(script).origin or "") if is_module else script)
    path = path / "__main__.py" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not _CHANGES_ENVIRONMENT.search(text)


def _check_script(script: str) -> str:
    path = Path(script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"{script} is a folder without a __main__.py; expected a Python script.")
    if not path.exists():
        raise UsageError(f"there is no script {script} (looked for {path.absolute()}).")
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {script} can't be read by this user.")
    return str(path.absolute())


def _find_module(name: str) -> ModuleSpec:
    """Look for the module without importing it or its packages."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for depth, part in enumerate(parts := name.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]) if part else "", path)
        if spec is None:
            raise UsageError(f"there is no module {name} on Python's path or in {os.getcwd()}.")
        path = list(spec.submodule_search_locations or ())
    assert spec is not None
    if not path:
        return spec
    main = PathFinder.find_spec(f"{name}.__main__", path)
    if main is None:
        raise UsageError(f"{name} is a package without a __main__.py and can't be run with -m.")
    return main


def _choose_backend(asked: str | None, environ: Mapping[str, str]) -> Backend:
    """As Keras would choose: the environment, then keras.json, then what is installed."""
    if asked:
        backend, source = asked, "--backend"
    elif environ.get("KERAS_BACKEND"):
        backend, source = environ["KERAS_BACKEND"], "KERAS_BACKEND"
    elif configured := _configured_backend(config_file := _keras_json(environ)):
        backend, source = configured, str(config_file)
    else:
        installed = [name for name in _BACKEND_ORDER if importlib.util.find_spec(name)]
        if not installed:
            raise UsageError("no Keras backend is installed. Install one, for example `pip install shoal[jax]`.")
        backend, source = installed[0], "what is installed"
    if backend not in BACKENDS:
        raise UsageError(
            f"Shoal can't train on the backend {backend!r} (from {source}); it can on {', '.join(BACKENDS)}."
        )
    if importlib.util.find_spec(backend) is None:
        raise UsageError(
            f"the backend {backend} (from {source}) is not installed. "
            f"Install it with `pip install shoal[{backend}]`, or choose another with --backend."
        )
    return cast(Backend, backend)


def _keras_json(environ: Mapping[str, str]) -> Path:
    home = environ.get("KERAS_HOME")
    return (Path(home) if home else Path("~/.keras").expanduser()) / "keras.json"


def _configured_backend(path: Path) -> str | None:
    try:
        backend = json.loads(path.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None  # as Keras does: no file, or not one of its own
    return backend if isinstance(backend, str) else None


def _deadlines(timeout: float | None) -> Deadlines:
    if timeout is None:
        return Deadlines()
    return Deadlines(silence=timeout, stall=timeout * _STALL_PER_SILENCE)


def _default_logs(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "shoal" / "logs"


def _share(cores: tuple[int, ...], threads: int, number: int) -> tuple[int, ...]:
    """The cores of one worker, its own; a standby waits on those of another."""
    return tuple(sorted({cores[(number * threads + index) % len(cores)] for index in range(threads)}))
