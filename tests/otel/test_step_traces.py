"""From what members recorded to traces: one a step, with all members in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec

from shoal.observe.phases import Phase
from shoal.observe.spans import Span
from shoal.observe.story import StoryEvent, StoryKind
from shoal.otel.step_traces import GRACE, THE_RUN, StepTraces, TracedSpan

AT = 1_700_000_000.0


def traces(**more) -> StepTraces:
    numbers = count(1)
    return StepTraces("a-run", lambda bits: next(numbers), **more)


def step(member: str, number: int, at: float, wait: float = 0.1) -> list[Span]:
    """A second: half of it computing, then an exchange, with a wait in it, then the update."""
    phases = ((Phase.COMPUTING, 0.0, 0.5), (Phase.EXCHANGING, 0.5, 0.3), (Phase.APPLYING, 0.8, 0.2))
    spans = [Span(member, phase, number, at + begins, lasts) for phase, begins, lasts in phases]
    # A wait is over, and told, before that within which it lies.
    return [spans[0], Span(member, Phase.WAITING, number, at + 0.55, wait, inside=True), *spans[1:]]


def named(spans: Iterable[TracedSpan], name: str) -> list[TracedSpan]:
    return [span for span in spans if span.name == name]


def test_a_step_is_one_trace_with_every_worker_in_it() -> None:
    made = traces()
    found = [*made.add("worker-0", step("worker-0", 7, AT)), *made.add("worker-1", step("worker-1", 7, AT + 0.01))]
    assert found == [], "nobody has said yet that the step is over"
    found += [*made.add("worker-0", step("worker-0", 8, AT + 1)), *made.add("worker-1", step("worker-1", 8, AT + 1.01))]
    found += made.finish()
    whole = next(span for span in named(found, "step") if span.member == THE_RUN and span.attributes["shoal.step"] == 7)
    assert (whole.start, whole.end, whole.parent) == (AT, AT + 1.01, None)
    assert whole.attributes["shoal.workers"] == 2
    own = [span for span in named(found, "step") if span.parent == whole.id]
    assert [span.member for span in own] == ["worker-0", "worker-1"]
    for mine in own:
        below = [span for span in found if span.parent == mine.id]
        assert [span.name for span in below] == ["computing", "exchanging gradients", "applying the update"]
        assert abs(sum(span.end - span.start for span in below) - (mine.end - mine.start)) < 1e-6
        (wait,) = [span for span in found if span.parent == below[1].id]
        assert wait.name == "waiting"
    assert len({span.trace for span in named(found, "step")}) == 2, "step 8 is another trace"
    assert len({span.id for span in found}) == len(found)


def test_a_second_model_that_counts_from_0_again_does_not_join_the_steps_of_the_first() -> None:
    made = traces()
    found: list[TracedSpan] = []
    for number in range(12):
        found += made.add("worker-0", step("worker-0", number, AT + number))
        found += made.settle()
    found += made.add("worker-0", step("worker-0", 0, AT + 20))
    found += made.finish()
    first, second = (
        span for span in named(found, "step") if span.parent is None and span.attributes["shoal.step"] == 0
    )
    assert first.trace != second.trace


def test_a_step_is_told_when_nothing_more_can_come_and_nothing_is_kept_of_it() -> None:
    made = traces()
    for number in range(200):
        for member in ("worker-0", "worker-1"):
            list(made.add(member, step(member, number, AT + number)))
        list(made.settle())
    assert len(made._steps) <= GRACE + 2


def test_what_is_between_steps_and_what_happened_are_below_the_run() -> None:
    made = traces()
    building = Span("worker-0", Phase.BUILDING, 0, AT, 2.0)
    found = [*made.add("worker-0", [building, *step("worker-0", 0, AT + 2)])]
    found += made.tell(StoryEvent(AT + 3, StoryKind.TROUBLE, "worker-1 was killed", "worker-1", 0))
    found += made.finish()
    (whole,) = named(found, "run")
    assert (whole.trace, whole.id, whole.start, whole.end) == (made.run.trace, made.run.id, AT, AT + 3)
    below = {span.name: span for span in found if span.parent == whole.id}
    assert below["building the model"].member == "worker-0"
    assert below["trouble"].is_error
    assert below["trouble"].attributes == {
        "shoal.text": "worker-1 was killed",
        "shoal.member": "worker-1",
        "shoal.step": 0,
    }


def test_what_a_server_applies_is_below_the_push_that_brought_it_whoever_tells_first() -> None:
    made = traces()
    batch = "batch 3 of epoch 0"
    applied = [Span("server-0", Phase.APPLYING, 9, AT + 0.2, 0.1, f"{batch}: shard 2")]
    idle = [Span("server-0", Phase.SERVING, 9, AT, 0.2)]
    found = [*made.add("server-0", [*idle, *applied]), *made.settle()]
    pushes = [
        Span("worker-0", Phase.COMPUTING, 4, AT, 0.1),
        Span("worker-0", Phase.EXCHANGING, 4, AT + 0.1, 0.3, batch),
    ]
    found += made.add("worker-0", pushes)
    found += made.finish()
    (push,) = named(found, "exchanging gradients")
    (own,) = [span for span in found if span.member == "server-0"]
    assert (own.name, own.trace, own.parent) == ("applying the update", push.trace, push.id)


def test_of_a_trace_that_is_not_wanted_there_is_nothing() -> None:
    made = traces(samples=lambda trace: False)
    found = [*made.add("worker-0", [*step("worker-0", 0, AT), *step("worker-0", 1, AT + 1)]), *made.finish()]
    assert found == []


def test_what_went_on_at_the_end_is_marked() -> None:
    made = traces()
    going_on = Span("worker-0", Phase.COMPUTING, 3, AT, 0.4, is_open=True)
    found = [*made.add("worker-0", [going_on]), *made.finish()]
    (span,) = named(found, "computing")
    assert span.attributes["shoal.unfinished"] is True


def test_of_too_many_steps_some_are_left_out_as_a_whole() -> None:
    made = traces(most=20.0)
    found: list[TracedSpan] = []
    for number in range(100):
        for member in ("worker-0", "worker-1"):
            fast = [
                msgspec.structs.replace(
                    span, start=AT + number * 0.1 + (span.start - AT) / 10, seconds=span.seconds / 10
                )
                for span in step(member, number, AT)
            ]
            found += made.add(member, fast)
    found += made.finish()
    sent = {span.attributes["shoal.step"] for span in found if span.name == "step"}
    assert 15 < len(sent) < 30, "of ten a second with ten spans each, two a second, and some at once in the beginning"
    assert (made.steps, made.left_out) == (100, 100 - len(sent))
    for number in sent:
        assert len([span for span in found if span.attributes.get("shoal.step") == number]) == 11
