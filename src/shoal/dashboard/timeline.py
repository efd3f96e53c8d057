"""The last steps of a run, side by side: who did what when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.observe.phases import Phase, TimeUse
from shoal.observe.spans import Span

STEPS = 8  # that are shown
_MOST_SPANS = 1500
_WRITTEN_WITHIN = 1.5  # seconds: members write down what they did twice a second
_TRAINS = (Phase.COMPUTING, Phase.APPLYING)


class TimelineSpan(msgspec.Struct, frozen=True, array_like=True):
    """One bar."""

    start: float  # seconds from the timeline's beginning
    seconds: float
    use: TimeUse
    phase: str
    step: int


class TimelineRow(msgspec.Struct, frozen=True):
    """What a member did. A later bar lies over an earlier one."""

    member: str
    spans: tuple[TimelineSpan, ...]


class Timeline(msgspec.Struct, frozen=True):
    """All rows have the same clock."""

    first: int  # step
    last: int
    seconds: float
    rows: tuple[TimelineRow, ...]


def timeline(spans: Mapping[str, Sequence[Span]]) -> Timeline | None:
    """Of the last steps that were trained; None if there are none."""
    here = _still_here(spans)
    known = min((_end(member) for member in here), default=0.0)  # of all
    trained = [span for member in here for span in member if span.phase in _TRAINS and span.start < known]
    if not trained:
        return None
    ends = min(known, max(span.end for span in trained))
    last = max(span.step for span in trained)
    shown = [span for span in trained if span.step > last - STEPS]
    begins = min(span.start for span in shown)
    room = _MOST_SPANS // len(spans)
    rows = (TimelineRow(member, _bars(found, begins, ends)[-room:]) for member, found in spans.items())
    return Timeline(min(span.step for span in shown), last, ends - begins, tuple(row for row in rows if row.spans))


def _still_here(spans: Mapping[str, Sequence[Span]]) -> list[Sequence[Span]]:
    """Without those who have long said nothing."""
    latest = max((_end(member) for member in spans.values()), default=0.0)
    return [member for member in spans.values() if _end(member) > latest - _WRITTEN_WITHIN]


def _end(spans: Sequence[Span]) -> float:
    return max((span.end for span in spans), default=0.0)


def _bars(spans: Sequence[Span], begins: float, ends: float) -> tuple[TimelineSpan, ...]:
    """What there is of them between the two."""
    bars = []
    for span in spans:
        start, end = max(span.start, begins), min(span.end, ends)
        if end > start:
            at, lasting = round(start - begins, 6), round(end - start, 6)
            bars.append(TimelineSpan(at, lasting, span.phase.use, str(span.phase), span.step))
    return tuple(bars)
