"""What a run leaves in its logs, as spans: with OpenTelemetry's own exporters, to a collector that decodes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from shoal.observe.phases import Phase
from shoal.observe.record_files import RecordFile
from shoal.observe.spans import KeptSpan, SpanBlock
from shoal.observe.story import Story, StoryKind
from shoal.otel.process import SpanFollower, summary

from .receiver import attributes, collecting

AHEAD = 1_700_000_000.0
RUN = "20261118-000000-abcd"


def steps(first: int, stop: int, going_on: int | None = None) -> SpanBlock:
    """Steps of a tenth of a second."""
    spans = []
    for number in range(first, stop):
        at = number / 10
        spans.append(KeptSpan.of(Phase.COMPUTING, number, at, at + 0.06, f"piece {number}"))
        spans.append(KeptSpan.of(Phase.EXCHANGING, number, at + 0.06, at + 0.1))
    now = KeptSpan.of(Phase.COMPUTING, going_on, going_on / 10, going_on / 10 + 0.05) if going_on is not None else None
    return SpanBlock(AHEAD, 0, tuple(spans), now)


def leave_logs(folder: Path, count: int = 20) -> None:
    for member in ("worker-0", "worker-1"):
        RecordFile(folder, member).write(steps(0, count))
    Story(folder).write(StoryKind.TROUBLE, "worker-1 was lost", "worker-1", 3)


def soon() -> float:
    return time.monotonic() + 30.0


def test_members_are_resources_and_their_spans_have_the_times_of_the_record(tmp_path: Path) -> None:
    leave_logs(tmp_path)
    kept = InMemorySpanExporter()
    follower = SpanFollower(RUN, tmp_path, kept)
    assert follower.finish(soon())
    spans = kept.get_finished_spans()
    assert follower.export.sent == len(spans)
    members = {span.resource.attributes["shoal.member"] for span in spans}
    assert members == {"worker-0", "worker-1", "the run"}
    computing = [span for span in spans if span.name == "computing" and span.attributes["shoal.step"] == 12]
    assert [span.resource.attributes["service.instance.id"] for span in computing] == [
        f"{RUN}/worker-0",
        f"{RUN}/worker-1",
    ]
    assert {span.resource.attributes["service.name"] for span in spans} == {"shoal"}
    for span in computing:
        assert abs(span.start_time - (AHEAD + 1.2) * 1e9) < 1e3
        assert abs(span.end_time - span.start_time - 0.06e9) < 1e4
        assert span.attributes["shoal.detail"] == "piece 12"
    (trouble,) = [span for span in spans if span.name == "trouble"]
    assert trouble.status.status_code is StatusCode.ERROR
    ids = {(span.context.trace_id, span.context.span_id) for span in spans}
    for span in spans:
        assert span.parent is None or (span.context.trace_id, span.parent.span_id) in ids, "a parent that is nowhere"
    (whole,) = [span for span in spans if span.name == "run"]
    roots = [span for span in spans if span.parent is None and span is not whole]
    assert {span.links[0].context.trace_id for span in roots} == {whole.context.trace_id}


def test_a_record_that_grows_is_sent_once(tmp_path: Path) -> None:
    kept = InMemorySpanExporter()
    follower = SpanFollower(RUN, tmp_path, kept)
    assert not follower.look(), "nobody has written yet"
    file = RecordFile(tmp_path, "worker-0", limit=600)  # full after a block or two
    for first in range(0, 200, 5):
        file.write(steps(first, first + 5, going_on=first + 5))
        file.write(
            SpanBlock(AHEAD, 0, (), KeptSpan.of(Phase.COMPUTING, first + 5, first / 10 + 0.5, first / 10 + 0.55))
        )
        assert follower.look()
        assert not follower.look()
    follower.finish(soon())
    computed = [span.attributes["shoal.step"] for span in kept.get_finished_spans() if span.name == "computing"]
    assert computed == [*range(200), 200], "and in the end what went on"


def test_service_name_and_attributes_are_as_the_environment_says(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "our-training")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision")
    leave_logs(tmp_path)
    kept = InMemorySpanExporter()
    SpanFollower(RUN, tmp_path, kept).finish(soon())
    about = kept.get_finished_spans()[0].resource.attributes
    assert (about["service.name"], about["team"]) == ("our-training", "vision")


def test_a_sampler_chooses_whole_steps(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    leave_logs(tmp_path, count=200)
    kept = InMemorySpanExporter()
    SpanFollower(RUN, tmp_path, kept).finish(soon())
    by_step: dict[object, int] = {}
    for span in kept.get_finished_spans():
        if span.name in ("step", "computing", "exchanging gradients"):
            by_step[span.attributes["shoal.step"]] = by_step.get(span.attributes["shoal.step"], 0) + 1
    assert set(by_step.values()) == {7}, "the step, and for each of two workers its own and two phases"
    assert 40 < len(by_step) < 160


def test_steps_that_were_too_many_are_told_at_the_end(tmp_path: Path) -> None:
    leave_logs(tmp_path, count=200)
    follower = SpanFollower(RUN, tmp_path, InMemorySpanExporter(), most=50.0)
    follower.finish(soon())
    left_out = follower.traces.left_out
    assert 0 < left_out < 200
    assert f"; of 200 steps {left_out} were left out" in summary(follower, "there", is_all=True)


def test_a_collector_gets_them_over_http(tmp_path: Path, monkeypatch) -> None:
    leave_logs(tmp_path)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        follower = SpanFollower(RUN, tmp_path, OTLPSpanExporter())
        follower.finish(soon())
    assert set(collector.requests) == {"/v1/traces"}
    assert set(collector.by_resource) == {RUN, f"{RUN}/worker-0", f"{RUN}/worker-1"}
    assert collector.resources[f"{RUN}/worker-1"]["shoal.role"] == "worker"
    assert len(collector.spans) == follower.export.sent == 2 * 20 * 3 + 20 + 1 + 1
    one = next(span for span in collector.by_resource[f"{RUN}/worker-0"] if attributes(span).get("shoal.step") == 5)
    steps_of_5 = [span for span in collector.spans if span.trace_id == one.trace_id]
    assert len(steps_of_5) == 7, "what both workers did in one step is one trace"


@pytest.mark.filterwarnings("ignore")
def test_a_collector_that_refuses_costs_its_spans_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    leave_logs(tmp_path)
    with collecting() as collector:
        collector.status = 400
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        follower = SpanFollower(RUN, tmp_path, OTLPSpanExporter())
        assert follower.finish(soon())
    assert (follower.export.sent, follower.export.refused) == (0, 2 * 20 * 3 + 20 + 1 + 1)
