"""How fast two workers add up their gradients: Shoal over shared memory, torch gloo, and the memory itself.

    python bench/allreduce.py [--rounds 9] [--seconds 0.3] [--sizes 65536,104857600]

Two processes, each pinned to a core of its own with one thread, do the same work at the same time:
  shoal            gradients lie in the bucket, the total is read in place: what a training step does
  shoal_copy_in    the same after a copy of the gradients from private memory into the bucket
  gloo_pinned      torch.distributed.all_reduce of a private tensor of the same size, all threads on the same core
  gloo_free        the same with all its threads free to use both cores; figures are against the faster of the two
  memcpy           each process copies the same number of bytes: the limit of the memory

Slices of all five are interleaved in random order and back (ABBA), and each round gives one ratio per pair; the
figures are medians over the rounds with the quartiles. `a_a` compares the two shoal slices of each round: if it is
not 1.00 within a few percent, the run is void. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

KINDS = ("shoal", "shoal_copy_in", "gloo_pinned", "gloo_free", "memcpy")
OURS = KINDS[:2]
SIZES = (1 << 10, 64 << 10, 1 << 20, 32 << 20, 100 << 20)
WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one slice")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", nargs=2, metavar=("RANK", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(int(options.worker[0]), Path(options.worker[1]))
        return
    sizes = [int(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory() as folder, Workers(Path(folder)) as workers:
        results = [measure(workers, size, options) for size in sizes]
    print(
        json.dumps(
            {
                "what": "all-reduce of float32 between 2 processes, one core and one thread each",
                "date": time.strftime("%Y-%m-%d"),
                "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_1m": os.getloadavg()[0]},
                "python": platform.python_version(),
                "command": f"python bench/allreduce.py --rounds {options.rounds} --seconds {options.seconds}",
                "gloo": f"torch {metadata.version('torch')}, all_reduce, backend gloo, one intra-op thread",
                "sizes": results,
            },
            indent=2,
        )
    )


class Workers:
    """The two processes, told over pipes what to do next. `script` is this one, or that of another version."""

    def __init__(self, folder: Path, python: str = sys.executable, script: str = __file__) -> None:
        if len(os.sched_getaffinity(0)) < WORKERS:
            raise SystemExit("this benchmark needs two cores")
        environ = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [python, script, "--worker", str(rank), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            for rank in range(WORKERS)
        ]
        self._everyone("hello")

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
            process.wait(30)

    def open(self, size: int) -> None:
        self._everyone("open", size)

    def slice(self, kind: str, count: int) -> dict[str, float]:
        """Run `count` operations on both at once: seconds per operation (of the slower), faults, CPU seconds."""
        answers = self._everyone(kind, count)
        return {name: max(answer[name] for answer in answers) / count for name in answers[0]}

    def _everyone(self, *words: object) -> list[dict[str, float]]:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise SystemExit("a worker of the benchmark died")
            answers.append(json.loads(line))
        return answers


def measure(workers: Workers, size: int, options: argparse.Namespace) -> dict[str, Any]:
    workers.open(size)
    counts = {}
    for kind in KINDS:
        workers.slice(kind, 3)
        one = workers.slice(kind, 10)["seconds"]
        counts[kind] = max(3, int(options.seconds / one))
    order = random.Random(f"{options.seed} {size}")
    rounds: list[dict[str, list[dict[str, float]]]] = []
    for _ in range(options.rounds):
        there = order.sample(KINDS, len(KINDS))
        taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for kind in [*there, *reversed(there)]:
            taken[kind].append(workers.slice(kind, counts[kind]))
        rounds.append(taken)

    def seconds(taken: dict[str, list[dict[str, float]]], kind: str) -> float:
        if kind == "gloo":
            return min(seconds(taken, "gloo_pinned"), seconds(taken, "gloo_free"))
        return sum(part["seconds"] for part in taken[kind]) / len(taken[kind])

    def ratio(over: str, under: str) -> dict[str, float]:
        return spread([seconds(taken, over) / seconds(taken, under) for taken in rounds])

    return {
        "bytes": size,
        "milliseconds": {kind: spread([1e3 * seconds(taken, kind) for taken in rounds]) for kind in KINDS},
        "times_faster_than_gloo": {kind: ratio("gloo", kind) for kind in OURS},
        "fraction_of_memcpy": {kind: ratio("memcpy", kind) for kind in OURS},
        "gloo_fraction_of_memcpy": ratio("memcpy", "gloo"),
        "a_a": spread([taken["shoal"][0]["seconds"] / taken["shoal"][1]["seconds"] for taken in rounds]),
        "page_faults_per_operation": {kind: counted(rounds, kind, "faults") for kind in KINDS},
        "cpu_milliseconds_per_operation": {kind: 1e3 * counted(rounds, kind, "cpu") for kind in KINDS},
    }


def counted(rounds: list[dict[str, list[dict[str, float]]]], kind: str, name: str) -> float:
    return round(statistics.median(part[name] for taken in rounds for part in taken[kind]), 7)


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "low_quartile": round(low, 4), "high_quartile": round(high, 4)}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


# One of the two processes.


def work(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    # A thread stays where its maker was pinned when it made it: the first group's threads are free.
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORKERS)
    os.sched_setaffinity(0, {sorted(cores)[rank]})
    pinned = dist.new_group(backend="gloo")
    group = form_group(rank, folder)
    operations: dict[str, Callable[[], object]] = {}
    exchange = None
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        answer: dict[str, float] = {}
        if word == "open":
            if exchange is not None:
                exchange.close()
            exchange, operations = make_operations(group, pinned, arguments[0])
        elif word in operations:
            os.sched_setaffinity(0, cores if word == "gloo_free" else {sorted(cores)[rank]})
            dist.barrier()
            answer = timed(operations[word], arguments[0])
        print(json.dumps(answer), flush=True)
    if exchange is not None:
        exchange.close()
    group.close()
    dist.destroy_process_group()


def timed(operation: Callable[[], object], count: int) -> dict[str, float]:
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(count):
        operation()
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "faults": after.ru_minflt - before.ru_minflt, "cpu": cpu}


def make_operations(group: Any, pinned: Any, size: int) -> tuple[Any, dict[str, Callable[[], object]]]:
    import numpy as np
    import torch
    import torch.distributed as dist

    from shoal.collectives.layout import VectorLayout

    floats = size // 4
    exchange = group.open(VectorLayout(floats), 1)
    held = tuple(range(rank, rank + 1) for rank in range(WORKERS))
    private = np.full(floats, 1.0, np.float32)
    copied = np.zeros(floats, np.float32)
    tensor = torch.zeros(floats)
    for _ in range(2):  # both turns of the slots
        exchange.slot(0).f32[:] = 1.0
        total = exchange.reduce("warm up", WORKERS, held, b"").total
        assert (total.f32 == WORKERS).all()

    def shoal() -> None:
        exchange.reduce("step", WORKERS, held, b"")

    def shoal_copy_in() -> None:
        np.copyto(exchange.slot(0).f32, private)
        exchange.reduce("step", WORKERS, held, b"")

    return exchange, {
        "shoal": shoal,
        "shoal_copy_in": shoal_copy_in,
        "gloo_pinned": lambda: dist.all_reduce(tensor, group=pinned),
        "gloo_free": lambda: dist.all_reduce(tensor),
        "memcpy": lambda: np.copyto(copied, private),
    }


def form_group(rank: int, folder: Path) -> Any:
    from shoal.cluster.view import Member, View
    from shoal.collectives.group import form
    from shoal.config import Deadlines
    from shoal.wire import Listener, RunKey, Wakeup

    key = RunKey(b"benchmark".ljust(32))
    addresses = [f"unix:{folder}/{peer}.sock" for peer in range(WORKERS)]
    listener = Listener(addresses[rank], key)
    (folder / f"{rank}.ready").touch()
    while not all((folder / f"{peer}.ready").exists() for peer in range(WORKERS)):
        time.sleep(0.01)
    members = [Member(f"worker-{peer}", "worker", 0, "here", "here", address) for peer, address in enumerate(addresses)]
    return form(View.of(1, members), f"worker-{rank}", listener, key, "shm", Deadlines(), Wakeup())


if __name__ == "__main__":
    main()
