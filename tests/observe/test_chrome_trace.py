"""A record as a Chrome trace: what the format allows, and nothing else."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.observe.chrome_trace import encode, make_trace
from shoal.observe.phases import Phase
from shoal.observe.record_files import RecordFile
from shoal.observe.spans import KeptSpan, Span, SpanBlock
from shoal.observe.story import Story, StoryEvent, StoryKind
from shoal.observe.trace_file import write_trace

BEGIN = 1_700_000_000.0
Events = list[dict[str, Any]]


def steps(member: str, late: float = 0.0, count: int = 3) -> list[Span]:
    """Steps of a second each. `late` seconds more of computing; the others wait so long for it."""
    spans = []
    for step in range(count):
        at = BEGIN + step
        wait = 0.3 - late
        spans += [
            Span(member, Phase.COMPUTING, step, at, 0.5 + late, f"piece {member[-1]}: rows 0 to 9"),
            Span(member, Phase.EXCHANGING, step, at + 0.5 + late, 0.1 + wait),
            Span(member, Phase.WAITING, step, at + 0.5 + late, wait, inside=True),
            Span(member, Phase.APPLYING, step, at + 0.9, 0.1),
        ]
    return [span for span in spans if span.seconds > 0]


def served() -> dict[str, list[Span]]:
    """Two batches, each pushed by a worker to a server that applies it to two shards."""
    push = [Span("worker-0", Phase.EXCHANGING, at, BEGIN + at, 0.1, f"batch {at} of epoch 0") for at in range(2)]
    work = [Span("worker-0", Phase.COMPUTING, at, BEGIN + at + 0.1, 0.9, "metrics") for at in range(2)]
    applied = [
        Span("server-0", Phase.APPLYING, 2 * at + shard, BEGIN + at + 0.2 * (shard + 1), 0.1, f"{batch}: shard {shard}")
        for at, batch in enumerate(("batch 0 of epoch 0", "batch 1 of epoch 0"))
        for shard in range(2)
    ]
    return {"worker-0": sorted(push + work, key=lambda span: span.start), "server-0": applied}


def written(record: dict[str, list[Span]], story: tuple[StoryEvent, ...] = (), **limits: int) -> Events:
    trace = make_trace(record, story, **limits)
    document = json.loads(b"".join(encode(trace, {"what": "a test"})))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: Events = document["traceEvents"]
    check_format(events)
    return events


KNOWN = {
    "X": {"ph", "name", "pid", "tid", "ts", "dur", "cat", "args"},
    "s": {"ph", "name", "pid", "tid", "ts", "cat", "id"},
    "f": {"ph", "name", "pid", "tid", "ts", "cat", "id", "bp"},
    "i": {"ph", "name", "pid", "tid", "ts", "cat", "s", "args"},
    "M": {"ph", "name", "pid", "tid", "args"},
}


def check_format(events: Events) -> None:
    """As the trace event format has it, and as Perfetto reads it: slices of a thread lie in each other or apart."""
    threads: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert set(event) == KNOWN[event["ph"]], event
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "ts", "dur", "id") if key in event)
        assert event.get("ts", 0) >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    for slices in threads.values():
        check_nesting(slices)
    for origin, target in arrows.values():
        assert (origin["ph"], target["ph"], target["bp"]) == ("s", "f", "e")
        assert (origin["name"], origin["cat"]) == (target["name"], target["cat"])
        assert origin["ts"] <= target["ts"]
        for end in (origin, target):
            slices = threads[end["pid"], end["tid"]]
            assert any(start <= end["ts"] <= stop for start, stop in slices), "an arrow's end lies in a slice"
    named = {(event["pid"], event["name"]) for event in events if event["ph"] == "M"}
    assert {(pid, "process_name") for pid, _ in threads} <= named


def check_nesting(slices: list[tuple[int, int]]) -> None:
    stack: list[tuple[int, int]] = []
    for start, end in slices:
        while stack and start >= stack[-1][1]:
            stack.pop()
        assert not stack or (stack[-1][0] <= start and end <= stack[-1][1]), "two slices cross"
        stack.append((start, end))


def slices(events: Events, member: str) -> Events:
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == member)
    return [event for event in events if event["ph"] == "X" and event["pid"] == pid]


def test_every_member_is_a_process_and_its_spans_are_slices_with_their_step() -> None:
    events = written({"worker-0": steps("worker-0"), "worker-1": steps("worker-1", late=0.2)})
    first = slices(events, "worker-0")[:4]
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in first] == [
        ("computing", "computing", 0, 500_000),
        ("exchanging gradients", "exchanging", 500_000, 400_000),
        ("waiting", "waiting", 500_000, 300_000),
        ("applying the update", "computing", 900_000, 100_000),
    ]
    assert first[0]["args"] == {"step": 0, "detail": "piece 0: rows 0 to 9"}
    assert [e["args"]["step"] for e in slices(events, "worker-1")] == [step for step in range(3) for _ in range(4)]


def test_arrows_come_from_whom_the_others_have_waited_for() -> None:
    events = written({"worker-0": steps("worker-0"), "worker-1": steps("worker-1", late=0.2)})
    late, waits = (slices(events, member)[0]["pid"] for member in ("worker-1", "worker-0"))
    arrows = [event for event in events if event["ph"] in "sf"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in arrows[:2]] == [("s", late, 700_000), ("f", waits, 900_000)]
    assert len(arrows) == 6
    assert {event["name"] for event in arrows} == {"waited for"}


def test_arrows_come_from_a_push_to_where_it_was_applied() -> None:
    events = written(served())
    arrows = [event for event in events if event["ph"] in "sf"]
    assert [(e["ph"], e["name"], e["ts"]) for e in arrows[:4]] == [
        ("s", "pushed", 0),
        ("f", "pushed", 200_000),
        ("s", "pushed", 0),
        ("f", "pushed", 400_000),
    ]
    assert len(arrows) == 8


def test_a_step_that_is_exchanged_in_two_fits_makes_two_exchanges() -> None:
    later = [msgspec.structs.replace(span, start=span.start + 100) for span in steps("worker-0", count=1)]
    latest = [msgspec.structs.replace(span, start=span.start + 100) for span in steps("worker-1", 0.2, count=1)]
    events = written(
        {
            "worker-0": steps("worker-0", count=1) + later,
            "worker-1": steps("worker-1", 0.2, count=1) + latest,
        }
    )
    assert [event["ts"] for event in events if event["ph"] == "s"] == [700_000, 100_700_000]


def test_what_happened_is_marked_where_it_happened() -> None:
    lost = StoryEvent(BEGIN + 1.5, StoryKind.TROUBLE, "worker-1 was killed", "worker-1", 7)
    early = StoryEvent(BEGIN - 5.0, StoryKind.PROCESS, "worker-0 was started")
    events = written({"worker-0": steps("worker-0")}, (early, lost))
    marks = [event for event in events if event["ph"] == "i"]
    assert [(e["name"], e["ts"], e["args"]) for e in marks] == [
        ("process", 0, {"text": "worker-0 was started"}),
        ("trouble", 1_500_000, {"text": "worker-1 was killed", "member": "worker-1", "step": 7}),
    ]


def test_slices_do_not_cross_when_a_clock_was_set_back_between_two_blocks() -> None:
    spans = steps("worker-0")
    back = [msgspec.structs.replace(span, start=span.start - 0.25) for span in steps("worker-0", count=6)[12:]]
    events = written({"worker-0": spans + back})
    assert len(slices(events, "worker-0")) >= 20


def test_of_too_many_spans_the_last_are_kept_and_the_others_counted() -> None:
    record = {"worker-0": steps("worker-0", count=100), "worker-1": steps("worker-1", count=2)}
    trace = make_trace(record, each=50)
    events = written(record, each=50)
    assert trace.left_out == 350
    assert (len(slices(events, "worker-0")), len(slices(events, "worker-1"))) == (50, 8)
    assert slices(events, "worker-0")[-1]["args"]["step"] == 99


def test_what_was_going_on_when_a_member_was_killed_says_so() -> None:
    open_span = Span("worker-0", Phase.CALLBACKS, 4, BEGIN + 9, 2.0, is_open=True)
    (event,) = slices(written({"worker-0": [open_span]}), "worker-0")
    assert event["args"]["state"] == "went on when it was last heard of"


def leave_record(logs: Path) -> None:
    for member in ("worker-0", "worker-1"):
        kept = tuple(
            KeptSpan.of(span.phase, span.step, span.start - BEGIN, span.end - BEGIN, span.detail, span.inside)
            for span in steps(member)
        )
        RecordFile(logs, member).write(SpanBlock(BEGIN, 2, kept))
    Story(logs).write(StoryKind.END, "the script has finished")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_of_what_a_run_has_left(tmp_path: Path, name: str) -> None:
    leave_record(tmp_path)
    summary = write_trace(tmp_path, tmp_path / name)
    assert str(summary) == "24 spans of 2 members over 3.0 s; 4 spans were dropped while it trained"
    content = (tmp_path / name).read_bytes()
    document = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    check_format(document["traceEvents"])
    assert sorted(path.name for path in tmp_path.iterdir() if "trace" in path.name) == [name]


def test_a_trace_of_too_much_says_that_it_begins_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_record(tmp_path)
    monkeypatch.setattr("shoal.observe.trace_file.MOST_EVENTS", 20)
    summary = write_trace(tmp_path, tmp_path / "trace.json")
    assert str(summary).startswith("20 spans of 2 members over 2.5 s; what was before that is left out")


def test_a_trace_of_the_last_seconds(tmp_path: Path) -> None:
    leave_record(tmp_path)
    assert write_trace(tmp_path, tmp_path / "trace.json", last=1.05).spans == 10


def test_a_trace_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no member of the run has left a record"):
        write_trace(tmp_path, tmp_path / "trace.json")
    leave_record(tmp_path)
    with pytest.raises(UsageError, match="can't write the trace"):
        write_trace(tmp_path, tmp_path / "nowhere" / "trace.json")
