"""What the membership is told and what it answers. Values only.

A link is a number the shell gives to a connection. It becomes a member's when its Join is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.cluster.messages import End, StoryTold
from shoal.cluster.view import Member
from shoal.observe.phases import Activity
from shoal.wire.messages import Message

# Into membership: events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """A message came in on a link."""

    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """A link closed."""

    link: int


@dataclass(frozen=True, slots=True)
class Started:
    """The launcher started a worker: it will join."""

    member: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A worker's process is about to end; with which code is not known yet."""

    member: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The launcher saw a worker's process end. A negative code is a signal's number."""

    member: str
    code: int


@dataclass(frozen=True, slots=True)
class Noted:
    """What a member last wrote on its status page. Fresher than its last beat, but no sign of life."""

    member: str
    step: int
    doing: Activity


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher wants the run to end, or is gone."""

    why: str
    code: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the system says about a process: its state letter and the CPU seconds it has used."""

    state: str
    cpu: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Evidence is given for the members named by `suspects`, where there is any."""

    evidence: Mapping[str, Evidence] = field(default_factory=dict)


Event = Said | LinkClosed | Started | Ending | Exited | Noted | Interrupted | Tick

# Out of membership: decisions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this message on these links."""

    links: tuple[int, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class KeepResult:
    """Keep what a call has returned, for those who come late; before anybody is told anything."""

    call: int
    result: bytes


@dataclass(frozen=True, slots=True)
class KeepSpans:
    """Write down what a member of another host has done. Nobody waits for it."""

    member: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class KeepStory:
    """Write down what a member of another host tells: it happened just now. Nobody waits for it."""

    member: str
    told: StoryTold


@dataclass(frozen=True, slots=True)
class TellResults:
    """Send on these links, as Finished, what these calls have returned."""

    links: tuple[int, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close this link; what was told on it before still goes out."""

    link: int


@dataclass(frozen=True, slots=True)
class Fence:
    """This member of another view must do no more harm: end its process, if it is on this host."""

    member: Member


@dataclass(frozen=True, slots=True)
class WantWorkers:
    """Start so many more workers."""

    workers: int


@dataclass(frozen=True, slots=True)
class ReportTrouble:
    """Tell the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowStack:
    """Tell the user where in its code this member is, if it is on this host."""

    member: str


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run is over. Decided once; every member was told the same."""

    end: End


Decision = (
    Tell
    | KeepResult
    | KeepSpans
    | KeepStory
    | TellResults
    | HangUp
    | Fence
    | WantWorkers
    | ReportTrouble
    | ShowStack
    | RunOver
)
