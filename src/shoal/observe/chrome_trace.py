"""A run's record as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

A process of the trace is a member, and its spans are slices: those of one step have the same `step` among their
arguments. A wait within an exchange lies inside of it. Two kinds of arrows join members:

- from the exchange of the worker that came last to what the others do after it: they have waited for it;
- from a worker's push to a server's applying it.

What happened to the run (story.py) is a mark on a process of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import NamedTuple

import msgspec

from shoal.observe.phases import Phase
from shoal.observe.spans import Span
from shoal.observe.story import StoryEvent

MOST_EVENTS = 1_000_000  # of all members: of more than that, the last
_RUN = 1  # the number of the process that stands for the run itself; those of members follow
_WAITED_FOR, _PUSHED = "waited for", "pushed"
_MICROSECONDS = 1e6


class TraceEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event in the trace event format. Times are whole microseconds since the trace begins."""

    ph: str  # X: a slice; s and f: an arrow's ends; i: a mark; M: a name
    name: str
    pid: int
    tid: int
    ts: int | None = None
    cat: str | None = None
    dur: int | None = None
    id: int | None = None
    bp: str | None = None  # e: an arrow ends at the slice that is there, not at the next one
    s: str | None = None  # of a mark: where it is seen
    args: dict[str, str | int] | None = None


class ChromeTrace(NamedTuple):
    """The events of a trace, and what is to be known about it."""

    events: list[TraceEvent]
    start: float  # seconds since the epoch: the trace's beginning
    left_out: int  # spans that were too many


class _Slice(NamedTuple):
    """A span in its place."""

    span: Span
    start: int  # microseconds
    end: int
    number: int  # of its member


def make_trace(
    record: Mapping[str, Sequence[Span]], story: Iterable[StoryEvent] = (), each: int = MOST_EVENTS
) -> ChromeTrace:
    """Of all members, on the clock that they share. `each`: spans of a member, the last."""
    kept = {member: spans[-each:] for member, spans in record.items() if spans}
    start = min((spans[0].start for spans in kept.values()), default=0.0)
    slices = {
        member: _place(spans, start, number) for number, (member, spans) in enumerate(kept.items(), start=_RUN + 1)
    }
    numbers = count(1)
    events = [
        *_names(kept),
        *(_slice(slice) for placed in slices.values() for slice in placed),
        *_arrows(_WAITED_FOR, _waits(slices), numbers),
        *_arrows(_PUSHED, _pushes(slices), numbers),
        *_marks(story, start),
    ]
    return ChromeTrace(events, start, sum(map(len, record.values())) - sum(map(len, kept.values())))


def encode(trace: ChromeTrace, about: Mapping[str, str | int]) -> Iterator[bytes]:
    """The file, in parts."""
    to_json = msgspec.json.Encoder().encode
    yield b'{"displayTimeUnit":"ms","otherData":' + to_json(dict(about)) + b',"traceEvents":[\n'
    for number, event in enumerate(trace.events):
        yield (b",\n" if number else b"") + to_json(event)
    yield b"\n]}\n"


# Slices ---------------------------------------------------------------------------------------------------


def _place(spans: Sequence[Span], start: float, number: int) -> list[_Slice]:
    """One beside the other: a slice may lie in another, but no two may cross, whatever clocks say."""
    placed: list[_Slice] = []
    around: tuple[int, int] | None = None  # the last that is in no other
    within = 0  # where the last that is in it has ended
    for span in spans:
        first, last = (round((at - start) * _MICROSECONDS) for at in (span.start, span.end))
        if span.inside and around is not None:
            first, last = max(first, around[0], within), min(last, around[1])
            if last <= first:
                continue
            within = last
        else:
            first = max(first, around[1] if around is not None else 0)
            last = max(first, last)
            around, within = (first, last), first
        placed.append(_Slice(span, first, last, number))
    return placed


def _slice(placed: _Slice) -> TraceEvent:
    span = placed.span
    args: dict[str, str | int] = {"step": span.step}
    if span.detail:
        args["detail"] = span.detail
    if span.is_open:
        args["state"] = "went on when it was last heard of"
    return TraceEvent(
        "X",
        str(span.phase),
        placed.number,
        placed.number,
        ts=placed.start,
        cat=str(span.phase.use),
        dur=placed.end - placed.start,
        args=args,
    )


def _names(members: Iterable[str]) -> Iterator[TraceEvent]:
    for number, name in enumerate(["the run", *members], start=_RUN):
        yield TraceEvent("M", "process_name", number, number, args={"name": name})
        yield TraceEvent("M", "process_sort_index", number, number, args={"sort_index": number})
        what = "what happened" if number == _RUN else "what it does"
        yield TraceEvent("M", "thread_name", number, number, args={"name": what})


def _marks(story: Iterable[StoryEvent], start: float) -> Iterator[TraceEvent]:
    for event in story:
        args: dict[str, str | int] = {"text": event.text}
        if event.member:
            args["member"] = event.member
        if event.step is not None:
            args["step"] = event.step
        at = max(0, round((event.at - start) * _MICROSECONDS))
        yield TraceEvent("i", str(event.kind), _RUN, _RUN, ts=at, cat="story", s="p", args=args)


# Arrows ---------------------------------------------------------------------------------------------------


class _Arrow(NamedTuple):
    origin: _Slice
    target: _Slice


def _arrows(what: str, found: Iterable[_Arrow], numbers: Iterator[int]) -> Iterator[TraceEvent]:
    for (origin, target), id in zip(found, numbers, strict=False):
        yield TraceEvent("s", what, origin.number, origin.number, ts=origin.start, cat=what, id=id)
        at = max(origin.start, target.start)  # time flows one way
        yield TraceEvent("f", what, target.number, target.number, ts=at, cat=what, id=id, bp="e")


def _waits(slices: Mapping[str, Sequence[_Slice]]) -> Iterator[_Arrow]:
    """Of each exchange: from who came last to what the others did then."""
    for exchange in _exchanges(slices):
        last = max(exchange, key=lambda pair: pair.origin.start)
        for other in exchange:
            if other.origin.number != last.origin.number:
                yield _Arrow(last.origin, other.target)


def _exchanges(slices: Mapping[str, Sequence[_Slice]]) -> Iterator[list[_Arrow]]:
    """The exchanges that several took part in: what each did in it, and after it."""
    steps: defaultdict[int, list[_Arrow]] = defaultdict(list)
    for placed in slices.values():
        alone = [slice for slice in placed if not slice.span.inside]
        for one, after in pairwise(alone):
            if one.span.phase is Phase.EXCHANGING and not one.span.detail:  # a push to servers says of what
                steps[one.span.step].append(_Arrow(one, after))
    for pairs in steps.values():
        yield from (exchange for exchange in _overlapping(pairs) if len(exchange) > 1)


def _overlapping(pairs: list[_Arrow]) -> Iterator[list[_Arrow]]:
    """A step may be exchanged more than once: in parts, anew after a loss, in another fit."""
    together: list[_Arrow] = []
    until = 0
    for pair in sorted(pairs, key=lambda pair: pair.origin.start):
        if together and pair.origin.start > until:
            yield together
            together, until = [], 0
        together.append(pair)
        until = max(until, pair.origin.end)
    if together:
        yield together


def _pushes(slices: Mapping[str, Sequence[_Slice]]) -> Iterator[_Arrow]:
    """From what a worker pushed to where a server applied it: both say in their detail which batch it was."""
    pushed: dict[str, list[_Slice]] = defaultdict(list)
    applied: list[_Slice] = []
    for member, placed in slices.items():
        for slice in placed:
            if member.startswith("server-") and slice.span.phase is Phase.APPLYING:
                applied.append(slice)
            elif slice.span.phase in (Phase.EXCHANGING, Phase.APPLYING) and slice.span.detail:
                pushed[_batch(slice.span)].append(slice)
    for slice in applied:
        before = [push for push in pushed[_batch(slice.span)] if push.start <= slice.end]
        if before:
            yield _Arrow(max(before, key=lambda push: push.start), slice)


def _batch(span: Span) -> str:
    """`batch 3 of epoch 0: shard 2` is about the batch."""
    return span.detail.partition(":")[0]
