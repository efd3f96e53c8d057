"""From what members recorded to traces, as OpenTelemetry has them. Pure.

A step is a trace, with all members in it:

    step                              the run's: from the first member's beginning to the last one's end
      step                            worker-0's: from one update to the next
        computing, exchanging …       what it did; a wait within an exchange lies below it
      step                            worker-1's
    applying                          a server's, below the push that it applies

What comes between steps (building the model, evaluating), and what happened to the run (story.py), are in a trace of
their own, below a span that stands for the run. Every step's trace is linked to it.

Members tell what they did twice a second, each by itself, so a step is known to be over only some time after that.
Nothing that is kept here grows with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.observe.phases import Phase
from shoal.observe.spans import Span
from shoal.observe.story import StoryEvent, StoryKind

THE_RUN = ""  # in place of a member
GRACE = 5.0  # seconds after a step's end in which what belongs to it may still come
STEP, RUN = "step", "run"
_MOST_OPEN = 10_000  # steps that may still get something
_MOST_PUSHES = 10_000
_MOST_TOLD = 10_000  # spans of a member in one step
_TRACE_BITS, _SPAN_BITS = 128, 64
_IN_A_STEP = {
    *(Phase.READING, Phase.COMPUTING, Phase.EXCHANGING, Phase.APPLYING, Phase.CALLBACKS, Phase.SAVING),
    *(Phase.WAITING, Phase.LOOP),
}

Attributes = dict[str, str | int | bool]


class TracedSpan(msgspec.Struct, frozen=True):
    """One span of a trace. Times are seconds since the epoch, on the clock that all members share."""

    trace: int
    id: int
    parent: int | None
    member: str
    name: str
    start: float
    end: float
    attributes: Attributes = {}
    is_error: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where a span is: its trace, and itself in it."""

    trace: int
    id: int


@dataclass
class _Step:
    """A step that members may still tell of."""

    place: Place
    number: int
    start: float
    end: float
    is_wanted: bool
    members: set[str] = field(default_factory=set)


class StepTraces:
    """Takes what members tell, in the order in which each tells it; gives out the spans that are complete."""

    def __init__(
        self,
        run: str,
        new_id: Callable[[int], int],
        samples: Callable[[int], bool] = lambda trace: True,
        most: float = float("inf"),
    ) -> None:
        """`new_id`: a random number of so many bits. `samples`: whether the trace of this number is wanted.

        `most`: spans a second. If steps have more, some are left out, each as a whole.
        """
        self.run = Place(new_id(_TRACE_BITS), new_id(_SPAN_BITS))
        self._name = run
        self._new_id = new_id
        self._samples = samples
        self._told: dict[str, list[Span]] = {}  # of the step that each member is in
        self._steps: dict[int, _Step] = {}
        self._pushes: dict[str, tuple[Place, float]] = {}  # by the batch, with when it ended
        self._applied: list[Span] = []  # by servers: whose push is not known yet
        self._first, self._last = float("inf"), 0.0
        self._most = most
        self._credit, self._credited = most, 0.0  # spans that may be sent; when they last became more
        self.steps, self.left_out = 0, 0  # steps in all, and those that were too many

    def add(self, member: str, spans: Iterable[Span]) -> Iterator[TracedSpan]:
        for span in spans:
            self._first, self._last = min(self._first, span.start), max(self._last, span.end)
            if member.startswith("server-"):
                if span.phase is Phase.APPLYING:
                    self._applied.append(span)
                continue
            before = self._told.get(member, ())
            if before and (len(before) >= _MOST_TOLD or not (span.inside or _same_step(before, span))):
                yield from self._close(member)
            self._told.setdefault(member, []).append(span)

    def tell(self, event: StoryEvent) -> Iterator[TracedSpan]:
        """What happened to the run."""
        self._first, self._last = min(self._first, event.at), max(self._last, event.at)
        about: Attributes = {"shoal.text": event.text}
        if event.member:
            about["shoal.member"] = event.member
        if event.step is not None:
            about["shoal.step"] = event.step
        is_error = event.kind is StoryKind.TROUBLE
        yield from self._below_run(THE_RUN, str(event.kind), event.at, event.at, about, is_error)

    def settle(self) -> Iterator[TracedSpan]:
        """What is complete by now: called now and then."""
        yield from self._join_applied(self._last - GRACE)
        for step in [step for step in self._steps.values() if step.end < self._last - GRACE]:
            yield from self._end_step(step)
        while len(self._steps) > _MOST_OPEN:
            yield from self._end_step(next(iter(self._steps.values())))
        self._pushes = {batch: push for batch, push in self._pushes.items() if push[1] >= self._last - GRACE}

    def finish(self) -> Iterator[TracedSpan]:
        """The run is over: all the rest."""
        for member in list(self._told):
            yield from self._close(member)
        yield from self._join_applied(float("inf"))
        for step in list(self._steps.values()):
            yield from self._end_step(step)
        if self._last and self._samples(self.run.trace):
            about: Attributes = {"shoal.run": self._name}
            yield TracedSpan(self.run.trace, self.run.id, None, THE_RUN, RUN, self._first, self._last, about)

    # Workers ----------------------------------------------------------------------------------------------

    def _close(self, member: str) -> Iterator[TracedSpan]:
        """The member has gone on to something else: what it did before."""
        spans = sorted(self._told.pop(member, ()), key=lambda span: (span.start, span.inside))
        if not spans:
            return
        if spans[0].phase not in _IN_A_STEP:
            for span in spans:
                yield from self._below_run(member, str(span.phase), span.start, span.end, _about(span))
            return
        step = self._step_of(spans)
        step.members.add(member)
        if step.is_wanted:
            self._credit -= len(spans) + 1
            yield from self._of_member(member, step, spans)

    def _wants(self, trace: int, now: float) -> bool:
        """Whether a step is sent. All that members tell of it follows this."""
        passed = max(0.0, now - (self._credited or now))
        if passed:
            self._credit = min(self._most, self._credit + self._most * passed)
        self._credited = max(self._credited, now)
        self.steps += 1
        if self._credit <= 0.0:
            self.left_out += 1
            return False
        return self._samples(trace)

    def _step_of(self, spans: Sequence[Span]) -> _Step:
        number, start, end = spans[0].step, spans[0].start, max(span.end for span in spans)
        step = self._steps.get(number)
        if step is None:
            place = Place(self._new_id(_TRACE_BITS), self._new_id(_SPAN_BITS))
            step = self._steps[number] = _Step(place, number, start, end, self._wants(place.trace, end))
        step.start, step.end = min(step.start, start), max(step.end, end)
        return step

    def _of_member(self, member: str, step: _Step, spans: Sequence[Span]) -> Iterator[TracedSpan]:
        trace, own = step.place.trace, self._new_id(_SPAN_BITS)
        end = max(span.end for span in spans)
        about: Attributes = {"shoal.step": step.number}
        yield TracedSpan(trace, own, step.place.id, member, STEP, spans[0].start, end, about)
        around: Span | None = None
        around_id = own
        for span in spans:
            id = self._new_id(_SPAN_BITS)
            parent = own
            if span.inside and around is not None and span.start < around.end:
                parent = around_id
            elif not span.inside:
                around, around_id = span, id
            yield TracedSpan(trace, id, parent, member, str(span.phase), span.start, span.end, _about(span))
            if span.detail and span.phase in (Phase.EXCHANGING, Phase.APPLYING):  # a push says of which batch
                self._remember(_batch(span), Place(trace, id), span.end)

    def _end_step(self, step: _Step) -> Iterator[TracedSpan]:
        del self._steps[step.number]
        if step.is_wanted:
            about: Attributes = {"shoal.step": step.number, "shoal.workers": len(step.members)}
            yield TracedSpan(step.place.trace, step.place.id, None, THE_RUN, STEP, step.start, step.end, about)

    # Servers ----------------------------------------------------------------------------------------------

    def _remember(self, batch: str, push: Place, end: float) -> None:
        self._pushes[batch] = (push, end)
        if len(self._pushes) > _MOST_PUSHES:
            del self._pushes[next(iter(self._pushes))]

    def _join_applied(self, until: float) -> Iterator[TracedSpan]:
        """What servers applied, below the push. What nobody has told of until then stands alone."""
        waiting: list[Span] = []
        for span in self._applied:
            push, _ = self._pushes.get(_batch(span), (None, 0.0))
            if push is not None:
                id = self._new_id(_SPAN_BITS)
                yield TracedSpan(
                    push.trace, id, push.id, span.member, str(span.phase), span.start, span.end, _about(span)
                )
            elif span.end >= until and len(waiting) < _MOST_PUSHES:
                waiting.append(span)
        self._applied = waiting

    # The run ----------------------------------------------------------------------------------------------

    def _below_run(
        self, member: str, name: str, start: float, end: float, about: Attributes, is_error: bool = False
    ) -> Iterator[TracedSpan]:
        if self._samples(self.run.trace):
            id = self._new_id(_SPAN_BITS)
            yield TracedSpan(self.run.trace, id, self.run.id, member, name, start, end, about, is_error)


def _same_step(before: Sequence[Span], span: Span) -> bool:
    last = next((span for span in reversed(before) if not span.inside), before[-1])
    return last.step == span.step and last.phase in _IN_A_STEP and span.phase in _IN_A_STEP


def _about(span: Span) -> Attributes:
    about: Attributes = {"shoal.step": span.step}
    if span.detail:
        about["shoal.detail"] = span.detail
    if span.is_open:
        about["shoal.unfinished"] = True  # it went on when the member was last heard of
    return about


def _batch(span: Span) -> str:
    """`batch 3 of epoch 0: shard 2` is about the batch."""
    return span.detail.partition(":")[0]
