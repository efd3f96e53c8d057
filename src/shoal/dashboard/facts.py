"""What the page shows of a run. Pure: what was found goes in, and one value with everything comes out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from shoal.cluster.figures import GlobalFigures, figures, point
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.dashboard.sources import RunSources
from shoal.dashboard.timeline import Timeline
from shoal.observe.chart import ChartPoint
from shoal.observe.doctor import Finding
from shoal.observe.phases import TimeUse
from shoal.observe.story import StoryEvent, StoryKind

MOST_POINTS = 240  # of a chart: more than a screen can tell apart
_MOST_EVENTS = 80
_MOST_CHECKPOINTS = 6
_ENDED = "ended"  # of a member
_CLOSE = 0.5  # seconds: two points that look like one
_NOTHING = GlobalFigures(0, 0, 0.0, 0, {}, {})


class RunState(StrEnum):
    """In a word."""

    STARTING = "starting"
    TRAINING = "training"
    SILENT = "not answering"
    FINISHED = "finished"
    FAILED = "ended early"
    GONE = "gone"  # everything of it was killed


class MemberFacts(msgspec.Struct, frozen=True):
    """A line of the table."""

    id: str
    role: str
    state: str
    host: str
    pid: int
    step: int
    phase: str
    doing: str  # the phase, and what in it
    samples_per_second: float
    memory: int  # bytes
    silent: float  # seconds since it was last heard
    shares: dict[TimeUse, float]  # of its time; empty before it trains
    staleness: float | None = None  # of its updates, on average: how many of another worker's their weights lacked


class ChartFacts(msgspec.Struct, frozen=True):
    """The same length everywhere. None: there was no such figure, or it was not finite."""

    at: tuple[float, ...] = ()  # seconds since the epoch
    step: tuple[int, ...] = ()
    samples_per_second: tuple[float, ...] = ()
    workers: tuple[int, ...] = ()
    logs: dict[str, tuple[float | None, ...]] = {}


class PageFacts(msgspec.Struct, frozen=True):
    """Everything that is shown of one run."""

    run: str
    state: RunState
    text: str  # how it ended, or why it does not answer
    at: float  # seconds since the epoch
    script: str = ""
    backend: str = ""
    strategy: str = ""
    pieces: int = 0
    view: int = 0
    uptime: float = 0.0
    logs: str = ""
    figures: GlobalFigures = _NOTHING
    members: tuple[MemberFacts, ...] = ()
    chart: ChartFacts = ChartFacts()
    timeline: Timeline | None = None
    story: tuple[StoryEvent, ...] = ()  # the newest first
    findings: tuple[Finding, ...] = ()
    checkpoints: tuple[StoryEvent, ...] = ()  # the newest first

    @property
    def is_over(self) -> bool:
        return self.state in (RunState.FINISHED, RunState.FAILED, RunState.GONE)


def page_facts(found: RunSources) -> PageFacts:
    """From all that was found."""
    state, text = _state(found)
    newest = list(found.story)[::-1]
    known = PageFacts(
        found.run,
        state,
        text,
        found.at,
        chart=_chart(_points(found)),
        timeline=found.timeline,
        story=tuple(newest[:_MOST_EVENTS]),
        findings=tuple(found.findings),
        checkpoints=tuple(event for event in newest if event.kind is StoryKind.CHECKPOINT)[:_MOST_CHECKPOINTS],
    )
    return _with_reply(known, found.reply) if found.reply is not None else known


def _with_reply(known: PageFacts, reply: StatusReply) -> PageFacts:
    return msgspec.structs.replace(
        known,
        script=Path(reply.script).name,
        backend=reply.backend,
        strategy=reply.strategy,
        pieces=reply.pieces,
        view=reply.view,
        uptime=reply.uptime,
        logs=reply.logs,
        figures=figures(reply),
        members=tuple(_member(member, known.is_over) for member in reply.members),
    )


def _state(found: RunSources) -> tuple[RunState, str]:
    reply = found.reply
    if reply is not None and reply.ended is not None:
        return (RunState.FINISHED if reply.ended.ok else RunState.FAILED), reply.ended.reason
    if not found.is_alive:
        last = next((event.text for event in reversed(found.story) if event.kind is StoryKind.END), "")
        return RunState.GONE, last or "it ended without a last word: everything of it was killed"
    if reply is None:
        return RunState.SILENT, found.silence
    return (RunState.TRAINING if figures(reply).step else RunState.STARTING), ""


def _member(member: MemberStatus, is_over: bool) -> MemberFacts:
    """When the run is over, so are those of whom nothing else was heard."""
    return MemberFacts(
        member.id,
        member.role,
        _ENDED if is_over and member.state not in ("finished", "lost") else member.state,
        member.host,
        member.pid,
        member.step,
        member.phase,
        member.doing,
        member.samples_per_second,
        member.memory,
        member.silent,
        {use: share for use in TimeUse if (share := member.spent.share(use)) > 0.0 and use is not TimeUse.OTHER},
        member.counted.staleness_mean,
    )


def _points(found: RunSources) -> list[ChartPoint]:
    """Those that were kept, and how it is now."""
    now = point(found.reply, found.at) if found.is_alive and found.reply is not None else None
    if now is None:
        return list(found.chart)
    return [*(point for point in found.chart if point.at < now.at - _CLOSE), now]


def _chart(points: Sequence[ChartPoint]) -> ChartFacts:
    every = max(1, -(-len(points) // MOST_POINTS))
    kept = points[::-1][::every][::-1]  # the newest is one of them
    names = dict.fromkeys(name for point in kept for name in point.logs)
    return ChartFacts(
        tuple(round(point.at, 2) for point in kept),
        tuple(point.step for point in kept),
        tuple(round(point.samples_per_second, 1) for point in kept),
        tuple(point.workers for point in kept),
        {name: tuple(_short(point.logs.get(name)) for point in kept) for name in names},
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
