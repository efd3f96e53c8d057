"""What the page shows, of runs that nobody has started."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from shoal.cluster.messages import RunOutcome
from shoal.dashboard.facts import MOST_POINTS, RunState, page_facts
from shoal.dashboard.logs_reader import LogsReader
from shoal.dashboard.timeline import STEPS, timeline
from shoal.observe.chart import Chart
from shoal.observe.doctor import Finding, FindingKind
from shoal.observe.phases import Phase, TimeUse
from shoal.observe.story import Story, StoryEvent, StoryKind

from .scene import NOW, gathered, points, reply, span, worker


def test_a_run_that_trains_is_shown_with_its_figures_and_every_member() -> None:
    facts = page_facts(gathered(reply(worker(0, logs={"loss": 0.25}), worker(1), worker(2, "lost"), losses=1)))
    assert (facts.state, facts.script, facts.figures.workers, facts.figures.losses) == ("training", "train.py", 2, 1)
    assert facts.figures.samples_per_second == 512.0  # all-reduce: each counts the samples of all
    assert facts.figures.logs == {"loss": 0.25}
    assert [(member.id, member.state) for member in facts.members][1:] == [
        ("worker-0", "training"),
        ("worker-1", "training"),
        ("worker-2", "lost"),
    ]
    assert facts.members[1].shares == {TimeUse.COMPUTING: 0.75, TimeUse.WAITING: 0.25}  # without the script's own


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (gathered(reply(worker(0, step=0))), RunState.STARTING, ""),
        (gathered(None, silence="refused"), RunState.SILENT, "refused"),
        (
            gathered(reply(worker(0, "finished"), ended=RunOutcome(True, "all done")), False),
            RunState.FINISHED,
            "all done",
        ),
        (gathered(reply(worker(0), ended=RunOutcome(False, "worker-1 died")), False), RunState.FAILED, "worker-1 died"),
        (gathered(None, False), RunState.GONE, "it ended without a last word: everything of it was killed"),
    ],
)
def test_the_state_of_a_run_is_one_word_and_the_reason(found, state: RunState, text: str) -> None:
    facts = page_facts(found)
    assert (facts.state, facts.text) == (state, text)
    assert facts.is_over == (state in (RunState.FINISHED, RunState.FAILED, RunState.GONE))


def test_nobody_trains_in_a_run_that_is_over() -> None:
    """A run that was interrupted leaves the last that was known of its members."""
    members = (worker(0, "training"), worker(1, "finished"), worker(2, "lost"))
    facts = page_facts(gathered(reply(*members, ended=RunOutcome(False, "interrupted")), False))
    assert [member.state for member in facts.members] == ["ended", "ended", "finished", "lost"]


def test_a_chart_ends_with_the_present_and_never_outgrows_the_screen() -> None:
    live = page_facts(gathered(reply(worker(0, logs={"loss": 0.5})), chart=points(10))).chart
    assert (len(live.at), live.at[-1], live.logs["loss"][-1]) == (11, NOW, 0.5)
    many = page_facts(gathered(None, False, chart=points(5 * MOST_POINTS))).chart
    assert len(many.at) == MOST_POINTS
    assert many.step[-1] == 5 * MOST_POINTS


def test_a_loss_that_is_not_finite_is_a_gap_and_can_be_sent() -> None:
    facts = page_facts(gathered(reply(worker(0, logs={"loss": None})), chart=points(2)))
    assert facts.chart.logs["loss"] == (1.0, 0.5, None)
    assert msgspec.json.decode(msgspec.json.encode(facts))["chart"]["logs"]["loss"] == [1.0, 0.5, None]


def test_story_and_checkpoints_come_the_newest_first_and_bounded() -> None:
    told = [StoryEvent(NOW + i, StoryKind.CHECKPOINT if i % 2 else StoryKind.VIEW, str(i)) for i in range(500)]
    found = [Finding(0.5, "callbacks take 50 % of the time", "Do less", FindingKind.CALLBACKS)]
    facts = page_facts(gathered(None, False, story=told, findings=found))
    assert [event.text for event in facts.story[:2]] == ["499", "498"]
    assert [event.text for event in facts.checkpoints[:2]] == ["499", "497"]
    assert len(facts.story) < 100
    assert facts.findings == tuple(found)


def test_the_timeline_shows_the_last_steps_of_all_on_one_clock() -> None:
    spans = {
        member: [span(member, step, 0.1 * step, 0.1) for step in range(40)] + [span(member, 40, 4.0, late)]
        for member, late in (("worker-0", 0.1), ("worker-1", 0.4))
    }
    shown = timeline(spans)
    assert shown is not None
    assert (shown.first, shown.last) == (41 - STEPS, 40)
    assert shown.seconds == pytest.approx(0.1 * (STEPS - 1) + 0.1)  # up to when it is known of both
    assert [row.member for row in shown.rows] == ["worker-0", "worker-1"]
    assert shown.rows[0].spans[-1].start == pytest.approx(0.1 * (STEPS - 1))


def test_a_timeline_leaves_out_who_is_gone_and_needs_a_step() -> None:
    spans = {"worker-0": [span("worker-0", 9, 10.0, 0.1)], "worker-1": [span("worker-1", 2, 1.0, 0.1)]}
    shown = timeline(spans)
    assert shown is not None
    assert [row.member for row in shown.rows] == ["worker-0"]
    assert timeline({}) is None
    assert timeline({"worker-0": [span("worker-0", 0, 0.0, 1.0, Phase.STARTING)]}) is None


def test_logs_are_read_again_when_they_have_changed_and_only_then(tmp_path: Path) -> None:
    reader = LogsReader(tmp_path)
    assert (reader.story(), reader.chart(), reader.timeline()) == ([], [], None)
    Chart(tmp_path).add(points(1)[0])
    Story(tmp_path).write(StoryKind.VIEW, "view 1")
    eventually = time.monotonic() + 30.0
    while not (reader.chart() and reader.story()):
        assert time.monotonic() < eventually
    kept = reader.chart()
    assert reader.chart() is kept


def test_what_a_run_leaves_at_its_end_is_read_at_once_however_long_the_last_reading_took(tmp_path: Path) -> None:
    reader, story = LogsReader(tmp_path), Story(tmp_path)
    story.write(StoryKind.VIEW, "view 1")
    reader.story()
    reader._story._not_before = time.monotonic() + 1000.0
    story.write(StoryKind.END, "every worker finished its script")
    assert [event.kind for event in reader.story()] == [StoryKind.VIEW]
    assert [event.kind for event in reader.story(at_once=True)] == [StoryKind.VIEW, StoryKind.END]
