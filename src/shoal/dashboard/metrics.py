"""A run's figures as Prometheus reads them. Pure.

The format is a few lines of text, so it is written by hand:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.dashboard.facts import PageFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[_Sample]


def metrics(runs: Sequence[PageFacts]) -> str:
    """Of all runs that are watched."""
    return "".join(line for family in _families(runs) if family.samples for line in _lines(family))


def _lines(family: _Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for sample in family.samples:
        labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sample.labels.items())
        yield f"{family.name}{{{labels}}} {sample.value!r}\n"


def _families(runs: Sequence[PageFacts]) -> Iterator[_Family]:
    def of_run(name: str, kind: str, help: str, value: dict[str, float]) -> _Family:
        return _Family(f"shoal_{name}", kind, help, [_Sample({"run": run}, value[run]) for run in value])

    yield of_run("run_up", "gauge", "1 while the run goes on.", {run.run: float(not run.is_over) for run in runs})
    yield of_run("run_uptime_seconds", "gauge", "Since the run began.", {run.run: run.uptime for run in runs})
    yield of_run("step", "gauge", "Optimizer updates so far.", {run.run: float(run.figures.step) for run in runs})
    yield of_run(
        "samples_per_second",
        "gauge",
        "Of all workers together, lately; 0 when the run is over.",
        {run.run: 0.0 if run.is_over else run.figures.samples_per_second for run in runs},
    )
    yield of_run(
        "losses_total",
        "counter",
        "Workers and servers that were lost.",
        {run.run: float(run.figures.losses) for run in runs},
    )
    yield _Family(
        "shoal_log",
        "gauge",
        "Loss and metrics of the last step, as Keras shows them.",
        [
            _Sample({"run": run.run, "name": name}, v)
            for run in runs
            for name, v in run.figures.logs.items()
            if v is not None
        ],
    )
    yield _Family("shoal_members", "gauge", "Members, by their state.", list(_counted(runs)))
    yield from _of_members(runs)


def _counted(runs: Sequence[PageFacts]) -> Iterator[_Sample]:
    for run in runs:
        kinds = [(member.role, member.state) for member in run.members]
        for role, state in dict.fromkeys(kinds):
            yield _Sample({"run": run.run, "role": role, "state": state}, float(kinds.count((role, state))))


def _of_members(runs: Sequence[PageFacts]) -> Iterator[_Family]:
    here = [
        ({"run": run.run, "member": member.id}, member)
        for run in runs
        for member in run.members
        if member.state in ("training", "serving") and member.role != "coordinator"
    ]
    yield _Family(
        "shoal_member_time_share",
        "gauge",
        "Of a member's time in the last seconds, from 0 to 1.",
        [_Sample({**labels, "use": use}, share) for labels, member in here for use, share in member.shares.items()],
    )
    yield _Family(
        "shoal_member_memory_bytes",
        "gauge",
        "Resident memory of a member's process.",
        [_Sample(labels, float(member.memory)) for labels, member in here],
    )
    yield _Family(
        "shoal_member_staleness",
        "gauge",
        "Updates of another worker that an update's weights lacked, on average. With parameter servers.",
        [_Sample(labels, member.staleness) for labels, member in here if member.staleness is not None],
    )
    yield _Family(
        "shoal_member_silent_seconds",
        "gauge",
        "Since the coordinator last heard a member.",
        [_Sample(labels, member.silent) for labels, member in here],
    )
