"""The nodes of a Slurm allocation, as its variables tell. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from shoal.errors import UsageError
from shoal.launch.remote.host_list import HostSlots

_STEPS = 0xFFFF_FF00  # numbers from here on are no steps that srun has made, but the batch script and the like
_MOST_NODES = 100_000


def allocation(environ: Mapping[str, str]) -> tuple[HostSlots, ...] | None:
    """Its nodes and their tasks; None outside of one, and in a task that srun has started, which is one of many."""
    nodes = environ.get("SLURM_JOB_NODELIST")
    step = environ.get("SLURM_STEP_ID", "")
    if "SLURM_JOB_ID" not in environ or nodes is None or (step.isdecimal() and int(step) < _STEPS):
        return None
    names = list(itertools.islice(expand_nodes(nodes), _MOST_NODES))
    per_node = environ.get("SLURM_TASKS_PER_NODE", f"1(x{len(names)})")
    tasks = expand_tasks(per_node)
    if len(names) != len(tasks):
        raise UsageError(
            f"SLURM_JOB_NODELIST={nodes} names {len(names)} nodes, SLURM_TASKS_PER_NODE={per_node} has tasks of "
            f"{len(tasks)}. Say with --hosts where workers are to be started."
        )
    return tuple(HostSlots(name, slots) for name, slots in zip(names, tasks, strict=True))


def expand_nodes(text: str) -> Iterator[str]:
    """`gpu[1-3,07],login` is gpu1, gpu2, gpu3, gpu07 and login."""
    if not re.fullmatch(r"(?:[\w.:-]+|\[[\d,-]+\]|,)+", text):
        raise UsageError(f"SLURM_JOB_NODELIST={text!r} is no list of nodes.")
    for word in re.findall(r"(?:\[[^]]*\]|[^,[])+", text):
        parts = re.split(r"\[([^]]*)\]", word)  # text, range, text, range, text
        choices = [[part] if place % 2 == 0 else list(_numbers(part)) for place, part in enumerate(parts)]
        yield from ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last if dash else first) + 1))


def expand_tasks(text: str) -> list[int]:
    """`4(x2),3` is 4, 4 and 3."""
    found = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word) for word in text.split(",")]
    if not all(found):
        raise UsageError(f"SLURM_TASKS_PER_NODE={text!r} is no list of numbers of tasks.")
    return [int(one[1]) for one in found if one is not None for _ in range(int(one[2] or 1))]
