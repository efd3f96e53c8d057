"""A task that somebody else has started, one of several: which one it is, as its environment tells. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.launch.remote.slurm import expand_nodes, expand_tasks
from shoal.wire import names
from shoal.wire.names import host_and_port

_PORTS = range(20000, 30000)  # below those that systems give out by themselves


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """One of `size` tasks."""

    rank: int
    size: int
    source: str  # the variables that tell so
    first: str = ""  # the host of the first task; empty: they do not tell
    port: int = 0  # on it, that is ours; 0: they do not tell
    job: str = ""  # the name of all tasks together
    local_rank: int = 0  # among those of this host
    local_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or not 0 <= self.local_rank < self.local_size:
            raise UsageError(f"{self.source}: task {self.rank} of {self.size} can't be; the first is 0.")

    @property
    def chosen_port(self) -> int:
        """The one that was told, or one that all tasks of the job choose alike."""
        return self.port or _PORTS[zlib.crc32(self.job.encode()) % len(_PORTS)]


def same_host(one: str, other: str) -> bool:
    """Whether two names or addresses are of one host, as far as this host can tell. May ask a name server."""
    return one.lower() == other.lower() or bool(_where(one) & _where(other))


def find_place(
    environ: Mapping[str, str], by: str | None = None, is_same: Callable[[str, str], bool] = same_host
) -> TaskPlace:
    """Of this task. UsageError if nothing tells it, or two sources tell different places. `by`: the one to believe."""
    if by is not None and by not in READERS:
        raise UsageError(f"--by {by}: there is no such source; there is {', '.join(READERS)}.")
    readers = READERS if by is None else {by: READERS[by]}
    found = {name: place for name, read in readers.items() if (place := _read(name, read, environ)) is not None}
    if not found:
        raise UsageError(
            "nothing in the environment tells which task this is: no variables of torchrun, Slurm, MPI, TF_CONFIG, JAX "
            "or Kubeflow, and not all three of JOB_COMPLETION_INDEX, SHOAL_TASKS and SHOAL_FIRST. `shoal worker` is "
            "for tasks that such a system starts; use `shoal run` otherwise."
        )
    (name, place), *others = found.items()
    for other, another in others:
        if (another.rank, another.size) != (place.rank, place.size):
            raise UsageError(
                f"two sources disagree: this is task {place.rank} of {place.size} by {place.source}, and task "
                f"{another.rank} of {another.size} by {another.source}. Choose with --by {name} or --by {other}."
            )
        if place.first and another.first and not is_same(place.first, another.first):
            raise UsageError(
                f"two sources disagree: the first task is on {place.first} by {place.source}, and on {another.first} "
                f"by {another.source}. Choose with --by {name} or --by {other}."
            )
    for _, another in others:  # what the first does not know another may
        if not place.first and another.first:
            return another
    return place


def _where(host: str) -> set[str]:
    """Its addresses; all of this host are one. Its name, if it has none."""
    try:
        return {"here" if names.is_own(address) else address for address in names.lookup(host)}
    except UsageError:
        return {host.lower()}


def _read(
    name: str, read: Callable[[Mapping[str, str]], TaskPlace | None], environ: Mapping[str, str]
) -> TaskPlace | None:
    try:
        return read(environ)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"the variables of {name} are not understood: {error!r}.") from error


def _torchrun(environ: Mapping[str, str]) -> TaskPlace | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        return None
    port = int(environ.get("MASTER_PORT", "0"))
    return TaskPlace(
        int(environ["RANK"]),
        int(environ["WORLD_SIZE"]),
        "RANK, WORLD_SIZE and MASTER_ADDR",
        environ["MASTER_ADDR"],
        port + 1 if port else 0,  # torchrun's own store has the port itself
        environ.get("TORCHELASTIC_RUN_ID", ""),
        int(environ.get("LOCAL_RANK", "0")),
        int(environ.get("LOCAL_WORLD_SIZE", "1")),
    )


def _kubeflow(environ: Mapping[str, str]) -> TaskPlace | None:
    """What its trainer sets for torchrun: a task is a node."""
    if not {"PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR"} <= environ.keys():
        return None
    return TaskPlace(
        int(environ["PET_NODE_RANK"]),
        int(environ["PET_NNODES"].rpartition(":")[2]),
        "PET_NODE_RANK, PET_NNODES and PET_MASTER_ADDR",
        environ["PET_MASTER_ADDR"],
        int(environ.get("PET_MASTER_PORT", "0")),
    )


def _slurm(environ: Mapping[str, str]) -> TaskPlace | None:
    if not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"} <= environ.keys():
        return None
    nodes = list(expand_nodes(environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", ""))))
    tasks = expand_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", "1")))
    return TaskPlace(
        int(environ["SLURM_PROCID"]),
        int(environ["SLURM_NTASKS"]),
        "SLURM_PROCID and SLURM_NTASKS",
        nodes[0],
        0,
        f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}",
        int(environ.get("SLURM_LOCALID", "0")),
        tasks[min(int(environ.get("SLURM_NODEID", "0")), len(tasks) - 1)],
    )


def _mpi(environ: Mapping[str, str]) -> TaskPlace | None:
    for rank, size, local_rank, local_size in (
        (f"{mpi}_RANK", f"{mpi}_SIZE", f"{mpi}_LOCAL_RANK", f"{mpi}_LOCAL_SIZE") for mpi in ("OMPI_COMM_WORLD", "PMI")
    ):
        if {rank, size} <= environ.keys():
            local = int(environ.get(local_rank, "0")), int(environ.get(local_size, "1"))
            job = environ.get("PMIX_NAMESPACE", environ.get("PMI_JOBID", ""))
            return TaskPlace(int(environ[rank]), int(environ[size]), f"{rank} and {size}", "", 0, job, *local)
    return None


def _tensorflow(environ: Mapping[str, str]) -> TaskPlace | None:
    return _cluster(environ, "TF_CONFIG", ("chief", "master", "worker"))


def _vertex(environ: Mapping[str, str]) -> TaskPlace | None:
    return _cluster(environ, "CLUSTER_SPEC", ("workerpool0", "workerpool1"))


def _cluster(environ: Mapping[str, str], variable: str, kinds: tuple[str, ...]) -> TaskPlace | None:
    """A list of tasks by kind, and this one's kind and number."""
    if variable not in environ:
        return None
    told = json.loads(environ[variable])
    if not told.get("cluster") or not told.get("task"):
        return None
    tasks = [(kind, number, where) for kind in kinds for number, where in enumerate(told["cluster"].get(kind, ()))]
    mine = (told["task"]["type"], int(told["task"]["index"]))
    ranks = [rank for rank, (kind, number, _) in enumerate(tasks) if (kind, number) == mine]
    if not ranks:
        raise UsageError(f"{variable}: this task is {mine[0]} {mine[1]}, which trains nothing, or is not in its list.")
    host, port = host_and_port(tasks[0][2])
    return TaskPlace(ranks[0], len(tasks), variable, host, port)


def _jax(environ: Mapping[str, str]) -> TaskPlace | None:
    if not {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"} <= environ.keys():
        return None
    host, port = host_and_port(environ["JAX_COORDINATOR_ADDRESS"])
    source = "JAX_PROCESS_ID, JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS"
    return TaskPlace(int(environ["JAX_PROCESS_ID"]), int(environ["JAX_NUM_PROCESSES"]), source, host, port)


def _kubernetes(environ: Mapping[str, str]) -> TaskPlace | None:
    """A pod of an Indexed Job, which tells its number alone; the manifest tells the rest (examples/jobset.yaml)."""
    if not {"JOB_COMPLETION_INDEX", "SHOAL_TASKS", "SHOAL_FIRST"} <= environ.keys():
        return None
    source = "JOB_COMPLETION_INDEX, SHOAL_TASKS and SHOAL_FIRST"
    host, port = _first(environ["SHOAL_FIRST"])
    job = environ.get("SHOAL_JOB", "")
    return TaskPlace(int(environ["JOB_COMPLETION_INDEX"]), int(environ["SHOAL_TASKS"]), source, host, port, job)


def _first(word: str) -> tuple[str, int]:
    """HOST or HOST:PORT."""
    if not word:
        raise UsageError("SHOAL_FIRST is empty; expected the host of the first pod. Has the JobSet a `coordinator`?")
    return host_and_port(word) if ":" in word else (word, 0)


READERS: dict[str, Callable[[Mapping[str, str]], TaskPlace | None]] = {
    "torchrun": _torchrun,
    "kubeflow": _kubeflow,
    "kubernetes": _kubernetes,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "vertex": _vertex,
    "slurm": _slurm,
    "mpi": _mpi,
}
