"""The command lines of all contestants: best settings each, one core and one thread per worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from contestants import GATE, STAMPS, Command, Contestant, Stamped, free_port
from harness import ROOT, say
from peers.models import SAMPLES_PER_WORKER
from shoal.launch.environment import KEEP_MEMORY

PYTHON = os.path.abspath(sys.executable)  # not resolved: the link is what makes a virtual environment
PEERS = Path(__file__).resolve().parent / "peers"
WORKERS = 2
LEGACY_PATIENCE = 60.0  # seconds for a slice; one takes 5 to 10, and now and then its workers lock up for good
LINK_SAMPLES = 8  # per worker and step: on a slow link it is the exchange that is measured
APART = 50  # steps by which workers that do not wait for each other may differ
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
ONE_THREAD = {
    "jax": {"NPROC": "1"},
    "tensorflow": {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
    "torch": {"OMP_NUM_THREADS": "1"},
}
BACKENDS = tuple(ONE_THREAD)

Job = list[Contestant]  # what takes part together: several only where they know nothing of each other


def shoal(
    model: str,
    backend: str,
    workers: int = WORKERS,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    samples: int = SAMPLES_PER_WORKER,
    python: str = PYTHON,
    script: str = "plain_keras.py",
) -> Job:
    """Ours: the plain Keras script, unchanged, under `shoal run`. `python`: of the environment that has it."""
    launch = [*launch_ours(workers, backend, python), *flags]
    argv = [*launch, *_script(script, model, samples)[1:], "--workers", str(workers)]
    command = Command(argv, {**QUIET, **(env or {})}, range(workers))
    return [Contestant(f"shoal -n {workers}", [command], samples * workers)]


def stamped_shoal(
    model: str,
    workers: int,
    samples: int,
    flags: Sequence[str],
    words: Sequence[str] = (),
    cores: int = WORKERS,
    python: str = PYTHON,
) -> Stamped:
    """Ours on JAX, to be disturbed; `words` are further ones of the script's."""
    script = [str(PEERS / "plain_keras.py"), "--model", model, "--workers", str(workers), "--samples", str(samples)]
    argv = [*launch_ours(workers, "jax", python), *flags, *script, "--stamps", STAMPS, *words]
    return Stamped(f"shoal -n {workers}", Command(argv, QUIET, range(cores)), workers)


def served(
    model: str,
    flags: Sequence[str],
    samples: int = SAMPLES_PER_WORKER,
    workers: int = WORKERS,
    python: str = PYTHON,
) -> Job:
    """Ours on JAX with parameter servers, not synchronous: a step is one worker's, a whole batch."""
    launch = [*launch_ours(workers, "jax", python), "--strategy", "ps", *flags]
    argv = [*launch, *_script("plain_keras.py", model, samples)[1:]]
    name = f"shoal -n {workers} {' '.join(flags)}"
    return [Contestant(name, [Command(argv, QUIET, range(WORKERS))], samples, gatekeepers=workers)]


def stamped_served(model: str, flags: Sequence[str], samples: int, workers: int = WORKERS) -> Stamped:
    """The same, to be disturbed: every batch is stamped by the worker that has computed it."""
    script = [str(PEERS / "plain_keras.py"), "--model", model, "--samples", str(samples), "--stamps", STAMPS]
    argv = [*launch_ours(workers, "jax"), "--strategy", "ps", *flags, *script]
    name = f"shoal -n {workers} {' '.join(flags)}"
    return Stamped(name, Command(argv, QUIET, range(WORKERS)), workers, apart=APART)


def stamped_plain(model: str, samples: int, words: Sequence[str] = ()) -> Stamped:
    """Plain Keras on JAX, on one core."""
    script = [PYTHON, str(PEERS / "plain_keras.py"), "--model", model, "--samples", str(samples)]
    argv = [*script, "--stamps", STAMPS, *words]
    return Stamped("plain Keras", Command(argv, {"KERAS_BACKEND": "jax", **ONE_THREAD["jax"], **QUIET}, [0]), 1)


def torchrun(model: str, workers: int, samples: int, cores: int = WORKERS) -> Stamped:
    """torch DDP that is started again when a worker dies, from a checkpoint of every step, and looked at 100 times a
    second: the least that a failure can cost it."""
    launch = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    launch += ["--max-restarts", "1000", "--monitor-interval", "0.01"]
    script = [str(PEERS / "torch_ddp.py"), "--model", model, "--samples", str(samples), "--stamps", STAMPS]
    argv = [*launch, *script, "--checkpoint", f"{STAMPS}/checkpoint"]
    return Stamped("torchrun", Command(argv, ONE_THREAD["torch"], range(cores)), workers)


def isolated(model: str, backend: str, jobs: int = WORKERS, samples: int = SAMPLES_PER_WORKER) -> Job:
    """Plain Keras jobs that know nothing of each other, one core each, with the memory settings of Shoal's workers."""
    env = {"KERAS_BACKEND": backend, **ONE_THREAD[backend], **QUIET, **KEEP_MEMORY}
    argv = _script("plain_keras.py", model, samples)
    return [Contestant(f"plain Keras on core {core}", [Command(argv, env, [core])], samples) for core in range(jobs)]


def plain(model: str, backend: str, workers: int = WORKERS, env: Mapping[str, str] | None = None) -> Job:
    """The script as `shoal run -n workers` would run it, same arguments, but by plain Keras on all the cores."""
    argv = [*_script("plain_keras.py", model), "--workers", str(workers)]
    command = Command(argv, {"KERAS_BACKEND": backend, **QUIET, **(env or {})}, range(workers))
    return [Contestant("plain Keras", [command], SAMPLES_PER_WORKER * workers)]


def torch_ddp(model: str, samples: int = SAMPLES_PER_WORKER) -> Job:
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORKERS)}
    argv = _script("torch_ddp.py", model, samples)
    commands = [Command(argv, {**meet, "RANK": str(rank), **ONE_THREAD["torch"]}, [rank]) for rank in range(WORKERS)]
    return [Contestant("torch-ddp", commands, samples * WORKERS)]


def on_hosts(contestant: str, model: str, hosts: Sequence[str], each: int, meet: tuple[str, int], key: str = "") -> Job:
    """Ours (`shoal`, on PyTorch) or `torch-ddp` on hosts that are network namespaces, with so many workers each.

    `meet`: where the first of them is found. `key`: a file with a secret, for ours. Both have the same variables, those
    of torchrun, and the same cores.
    """
    size, samples = each * len(hosts), LINK_SAMPLES
    script = {"shoal": "plain_keras.py", "torch-ddp": "torch_ddp.py"}[contestant]
    argv = _script(script, model, samples)
    if contestant == "shoal":
        # More pieces, as for workers that wait for each other's cores, would be more sums that cross.
        argv = [*worker_of_ours(meet[1], key), "--pieces", str(size), *argv[1:], "--workers", str(size)]
    commands = placed(argv, hosts, each, meet)
    return [Contestant(f"{contestant} {len(hosts)} x {each}", commands, samples * size)]


def worker_of_ours(port: int, key: str) -> list[str]:
    """The beginning of a worker's command, on PyTorch, as torchrun would start it."""
    ours = [PYTHON, "-m", "shoal", "worker", "--by", "torchrun", "--port", str(port), "--key-file", key]
    return [*ours, "--backend", "torch", "--threads", "1"]


def placed(argv: Sequence[str], hosts: Sequence[str], each: int, meet: tuple[str, int]) -> list[Command]:
    """This command once for each worker, with the variables of torchrun, on hosts that are network namespaces."""
    size, cores = each * len(hosts), sorted(os.sched_getaffinity(0))
    commands = []
    for rank in range(size):
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % each)}
        place |= {"LOCAL_WORLD_SIZE": str(each), "MASTER_ADDR": meet[0], "MASTER_PORT": str(meet[1])}
        env = {**place, "GLOO_SOCKET_IFNAME": "cable", **ONE_THREAD["torch"]}
        # The hosts take turns at the cores, so that one worker on each of two hosts has a core of its own.
        core = cores[(rank // each + rank % each * len(hosts)) % len(cores)]
        commands.append(Command(["ip", "netns", "exec", hosts[rank // each], *argv], env, [core]))
    return commands


def keras_data_parallel(model: str) -> Job:
    devices = f"--xla_force_host_platform_device_count={WORKERS}"
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": devices, **QUIET}
    command = Command(_script("keras_data_parallel.py", model), env, range(WORKERS))
    return [Contestant("keras-data-parallel", [command], SAMPLES_PER_WORKER * WORKERS)]


def tf_keras_mwms(model: str) -> Job:
    """Raises RuntimeError when its environment can't be made."""
    argv = _script("tf_keras_mwms.py", model, python=tf_keras_environment())
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(WORKERS)]}
    # A second inter-op thread lets the collectives run beside the arithmetic: about a tenth faster here.
    threads = {**ONE_THREAD["tensorflow"], "TF_NUM_INTEROP_THREADS": "2"}
    commands = []
    for rank in range(WORKERS):
        task = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        commands.append(Command(argv, {"TF_CONFIG": json.dumps(task), **threads, **QUIET}, [rank]))
    return [Contestant("tf-keras-mwms", commands, SAMPLES_PER_WORKER * WORKERS)]


def tf_keras_ps(model: str, samples: int = SAMPLES_PER_WORKER) -> Job:
    """The legacy parameter servers: 2 workers, one server and a chief, which only hands out steps."""
    python = tf_keras_environment()
    tasks = {"worker": WORKERS, "ps": 1, "chief": 1}
    cluster = {role: [f"127.0.0.1:{free_port()}" for _ in range(count)] for role, count in tasks.items()}
    threads = {**ONE_THREAD["tensorflow"], "TF_NUM_INTEROP_THREADS": "4"}  # with fewer its workers may lock up
    commands = []
    for role, count in tasks.items():
        for index in range(count):
            argv = _script("tf_keras_ps.py", model, samples, python=python)
            task = {"cluster": cluster, "task": {"type": role, "index": index}}
            cores = [index] if role == "worker" else range(WORKERS)
            commands.append(Command(argv, {"TF_CONFIG": json.dumps(task), **threads, **QUIET}, cores))
    return [Contestant("tf-keras-ps", commands, samples, patience=LEGACY_PATIENCE)]


PEER_JOBS: dict[str, Callable[[str], Job]] = {
    "torch-ddp": torch_ddp,
    "keras-data-parallel": keras_data_parallel,
    "tf-keras-mwms": tf_keras_mwms,
}


def tf_keras_environment() -> str:
    """The Python of the legacy peer's own environment, made on first use. Raises RuntimeError if that fails."""
    home = ROOT / ".venv-tf-keras"
    python = str(home / "bin" / "python")
    done = home / "complete"
    if not done.exists():
        say(f"installing the legacy peer into {home.name} (once, a minute or more)")
        requirements = str(PEERS / "requirements-tf-keras.txt")
        for step in (
            [PYTHON, "-m", "venv", "--clear", str(home)],
            [python, "-m", "pip", "install", "-q", "-r", requirements],
        ):
            ended = subprocess.run(step, capture_output=True, text=True)
            if ended.returncode:
                raise RuntimeError(f"`{' '.join(step)}` failed: {ended.stderr.strip()[-300:]}")
        done.touch()
    return python


def launch_ours(workers: int, backend: str, python: str = PYTHON) -> list[str]:
    """The beginning of our commands: one thread per worker."""
    return [python, "-m", "shoal", "run", "-n", str(workers), "--threads", "1", "--backend", backend]


def _script(name: str, model: str, samples: int | None = None, python: str = PYTHON) -> list[str]:
    size = ["--samples", str(samples)] if samples is not None else []
    return [python, str(PEERS / name), "--model", model, *size, "--gate", GATE]
