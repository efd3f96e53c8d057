"""What there is to know of a run: asked of its coordinator if it lives, and read from what it leaves in its logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cluster.asking import ask
from shoal.cluster.last_status import read_last
from shoal.cluster.messages import StatusReply, StatusRequest
from shoal.cluster.run_facts import facts_of
from shoal.dashboard.logs_reader import LogsReader
from shoal.dashboard.timeline import Timeline
from shoal.errors import WireError
from shoal.observe import doctor
from shoal.observe.chart import ChartPoint
from shoal.observe.doctor import Finding
from shoal.observe.story import StoryEvent
from shoal.wire.held_folder import is_alive


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that can be looked at."""

    name: str
    logs: Path
    folder: Path | None = None  # of one that lives, or did: its coordinator is asked

    @property
    def is_alive(self) -> bool:
        return self.folder is not None and is_alive(self.folder)


@dataclass(frozen=True, slots=True)
class Glance:
    """What its coordinator says, or why it says nothing."""

    at: float  # seconds since the epoch
    is_alive: bool
    reply: StatusReply | None = None
    silence: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """What is shown at once when it changes: how the run is, and each of its members."""
        if self.reply is None:
            return (str(self.is_alive), self.silence)
        return (str(self.is_alive), *(f"{member.id} {member.state}" for member in self.reply.members))


@dataclass(frozen=True, slots=True)
class RunSources:
    """All that was found, at one moment."""

    run: str
    at: float  # seconds since the epoch
    is_alive: bool
    reply: StatusReply | None = None
    silence: str = ""  # why a run that lives has not answered
    story: Sequence[StoryEvent] = ()
    chart: Sequence[ChartPoint] = ()
    timeline: Timeline | None = None
    findings: Sequence[Finding] = ()


def glance(run: WatchedRun) -> Glance:
    """May take as long as a coordinator that does not answer: two seconds."""
    reply, silence = _ask(run.folder) if run.is_alive and run.folder is not None else (None, "")
    alive = run.is_alive and (reply is None or reply.ended is None)
    if reply is None and not alive:
        reply = _last(run)
    return Glance(time.time(), alive, reply, silence)


def gather(run: WatchedRun, seen: Glance, reader: LogsReader) -> RunSources:
    """All of it."""
    return RunSources(
        run.name,
        seen.at,
        seen.is_alive,
        seen.reply,
        seen.silence,
        reader.story(at_once=not seen.is_alive),
        reader.chart(at_once=not seen.is_alive),
        reader.timeline(at_once=not seen.is_alive),
        doctor.examine(facts_of(seen.reply)) if seen.reply is not None else (),
    )


def _ask(folder: Path) -> tuple[StatusReply | None, str]:
    try:
        reply = ask(folder, StatusRequest())
    except (WireError, OSError) as error:
        return None, str(error)
    return (reply, "") if isinstance(reply, StatusReply) else (None, f"it answers with {type(reply).__name__}")


def _last(run: WatchedRun) -> StatusReply | None:
    """Another run may have had the same folder for its logs."""
    last = read_last(run.logs)
    return last if last is not None and last.run == run.name else None
