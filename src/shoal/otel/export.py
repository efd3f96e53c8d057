"""Hands traces to an exporter, as OpenTelemetry's own values: one resource for each member."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from shoal.otel.step_traces import THE_RUN, Place, TracedSpan

SERVICE = "shoal"  # unless OTEL_SERVICE_NAME says otherwise
_SCOPE = "shoal"
_BATCH = 512  # spans
_NANOSECONDS = 1_000_000_000


class SpanExport:
    """The spans of one run. For one thread."""

    def __init__(self, run: str, exporter: SpanExporter) -> None:
        self._run = run
        self._exporter = exporter
        self._ids = _GivenIds()
        self._made = _MadeSpans()
        self._tracers: dict[str, trace.Tracer] = {}
        self._sampler = self._provider(THE_RUN).sampler
        self.sent = 0
        self.refused = 0  # spans that the exporter could not hand on
        self.members: set[str] = set()  # of which spans were sent

    def samples(self, number: int) -> bool:
        """Whether the trace of this number is wanted, as OTEL_TRACES_SAMPLER says."""
        decision = self._sampler.should_sample(None, number, "step").decision
        return decision is Decision.RECORD_AND_SAMPLE

    def send(self, spans: Iterable[TracedSpan], run: Place) -> None:
        """Returns when all are handed over, or can't be: an exporter tries again by itself for a while."""
        for span in spans:
            self._make(span, run)
            if len(self._made.spans) >= _BATCH:
                self._flush()
        self._flush()

    def close(self) -> None:
        self._exporter.shutdown()

    def _flush(self) -> None:
        spans, self._made.spans = self._made.spans, []
        if not spans:
            return
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.refused += len(spans)

    def _make(self, span: TracedSpan, run: Place) -> None:
        self._ids.trace, self._ids.span = span.trace, span.id
        above = Context()  # nothing
        if span.parent is not None:
            above = trace.set_span_in_context(NonRecordingSpan(_context(Place(span.trace, span.parent))))
        is_steps = span.parent is None and span.trace != run.trace
        made = self._tracer(span.member).start_span(
            span.name,
            above,
            attributes=span.attributes,
            links=[Link(_context(run))] if is_steps else (),
            start_time=int(span.start * _NANOSECONDS),
        )
        if span.is_error:
            made.set_status(Status(StatusCode.ERROR, str(span.attributes.get("shoal.text", ""))))
        made.end(int(span.end * _NANOSECONDS))
        if span.member:
            self.members.add(span.member)

    def _tracer(self, member: str) -> trace.Tracer:
        if member not in self._tracers:
            self._tracers[member] = self._provider(member).get_tracer(_SCOPE)
        return self._tracers[member]

    def _provider(self, member: str) -> TracerProvider:
        about = {
            SERVICE_INSTANCE_ID: f"{self._run}/{member}" if member else self._run,
            "shoal.run": self._run,
            "shoal.member": member or "the run",
            "shoal.role": member.partition("-")[0] or "run",
        }
        resource = Resource({SERVICE_NAME: SERVICE}).merge(_of_environment()).merge(Resource(about))
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._made)
        return provider


def new_id(bits: int) -> int:
    """Never 0, which is no id."""
    return secrets.randbits(bits) or 1


def _of_environment() -> Resource:
    """OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME."""
    known = Resource.create().attributes
    is_named = not str(known.get(SERVICE_NAME, "")).startswith("unknown_service")
    return Resource({name: value for name, value in known.items() if name != SERVICE_NAME or is_named})


def _context(place: Place) -> SpanContext:
    return SpanContext(place.trace, place.id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class _GivenIds(IdGenerator):
    """The ids of the next span."""

    trace = 1
    span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _MadeSpans(SpanProcessor):
    """Spans that have ended, until they are sent."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)
