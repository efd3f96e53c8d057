"""What members, the coordinator and `shoal status` say to each other.

A member says Join once, then Beat often, Post when it has something for all, and at the end either
Done or Failed. The coordinator answers with ViewChange (or Refuse), passes Posts on, and says End
once. Nothing that belongs to a step's hot path goes this way.

Who comes late says Ready once its script has come to a `fit`. The members hear of it (Candidates), agree on a step by
their notes, and say Admit there; the next view has the newcomer.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from shoal.cluster.identity import Identity
from shoal.cluster.succession.succession_messages import (
    Follow,
    LauncherGone,
    RecordEntry,
    RecordKept,
    StillCoordinating,
)
from shoal.cluster.view import Member, Role, View
from shoal.config import RunConfig
from shoal.observe.chart import ShownLogs
from shoal.observe.counters import WorkerFigures
from shoal.observe.phases import Activity
from shoal.observe.story import StoryKind
from shoal.observe.time_shares import TimeShares
from shoal.wire.messages import Message, MessageCodec

POST_LIMIT = 64 * 1024  # bytes of one posted value: posts are for facts, not for tensors
RESULT_LIMIT = 512 * 1024  # bytes of what a call returned that are kept for those who come late
NOT_KEPT = b""  # in the place of a result that is larger
TEXT_LIMIT = 32 * 1024  # characters of an error or a traceback


class RefusalReason(Enum):
    """Why a request was refused."""

    UNKNOWN_MEMBER = "unknown member"
    TAKEN = "id is taken"
    UNLIKE = "numeric identity differs"
    NOT_JOINED = "not joined"
    OUTSIDE = "the run went on without it"
    OVER = "the run is over"


class WorkDone(msgspec.Struct, frozen=True):
    """What the script of a worker has had done by all workers together, from its beginning on."""

    calls: dict[str, int] = {}  # by name: how often fit, evaluate and predict were called
    steps: int = 0
    samples: int = 0
    spent: TimeShares = TimeShares()  # of this worker; after the end, of all that finished
    counted: WorkerFigures = WorkerFigures()  # likewise

    @property
    def is_nothing(self) -> bool:
        return not self.calls and not self.steps


class Join(Message, frozen=True):
    """Member -> coordinator: count me in. Answered with the first ViewChange, Refuse or End."""

    member: Member
    identity: Identity
    epoch: int = 0  # of the last coordinator that it has heard of; whoever is an earlier one is none any more


class Beat(Message, frozen=True):
    """Member -> coordinator: I am alive; this is what I do. Answered only if it asks for the clock, with ClockTold."""

    step: int = 0
    doing: Activity = Activity()
    lasting: float = 0.0  # seconds it has been doing this, by its own clock
    samples_per_second: float = 0.0
    exchanging: bool = False  # it can't go on until every other worker came to the same exchange
    pieces: int = 0  # that its last batch was cut into; 0: it has not trained yet
    spent: TimeShares = TimeShares()  # in the last few beats
    memory: int = 0  # resident bytes of its process
    clock: float | None = None  # what its own clock says, if it wants to know what the coordinator's says
    logs: ShownLogs = msgspec.field(default_factory=dict)  # of its last step or epoch
    counted: WorkerFigures = WorkerFigures()  # in the last few beats
    plan: str = ""  # that it trains by, if one was made


class SpansRecorded(Message, frozen=True):
    """Member of another host -> coordinator: what I have done lately, for the run's record. Not answered."""

    frame: bytes


class StoryTold(Message, frozen=True):
    """Chief on another host -> coordinator: this has happened, for the run's story. Not answered."""

    kind: StoryKind
    text: str
    step: int | None = None


class Failed(Message, frozen=True):
    """Member -> coordinator: my script ended with this error. Answered with End."""

    step: int
    doing: Activity
    kind: str  # the exception's class
    error: str  # its text
    traceback: str
    blames: tuple[str, ...] = ()  # members whose absence caused it: the error is a consequence
    late: bool = False  # they were waited for as long as the deadline allows
    code: int = 1  # the exit code the script asked for, or 1
    of_all: bool = False  # every worker comes to it, some perhaps too late to say so
    where: str = ""  # of a refusal: file and line of the script. Its traceback is of little use there.


class Done(Message, frozen=True):
    """Member -> coordinator: my script has finished. Answered with End when all have."""

    step: int
    work: WorkDone = WorkDone()


class Post(Message, frozen=True):
    """Member -> coordinator -> every member: a small named value. A later one replaces an earlier."""

    name: str
    value: bytes


class Ready(Message, frozen=True):
    """Late member -> coordinator: my script has come to its `call`-th call, a fit; I can take pieces of it."""

    call: int


class Admit(Message, frozen=True):
    """Member -> coordinator: we stand between two steps in this view; let these in. Answered with the next view."""

    view: int
    candidates: tuple[str, ...]


class Decline(Message, frozen=True):
    """Member -> coordinator: nobody in this view can give these newcomers what they need yet. Answered likewise."""

    view: int
    newcomers: tuple[str, ...]


class Complaint(Message, frozen=True):
    """Member -> coordinator: I can't reach these in this view. Answered with the next view."""

    view: int
    about: tuple[str, ...]
    why: str
    late: bool = False  # they were waited for as long as the deadline allows; perhaps they wait for others, too


class Leave(Message, frozen=True):
    """Member -> coordinator: I have stopped between two steps and leave the run."""


class Finished(Message, frozen=True):
    """Member -> coordinator -> late members: what the `call`-th call of the script returned."""

    call: int
    result: bytes


class Caught(Message, frozen=True):
    """Member -> coordinator: my script has caught what its `call`-th call raised, and gone on to the call `next`.

    Answered with a view in which that is so for all; they hear the `outcome` as they hear what a call returned.
    """

    call: int
    next: int
    outcome: bytes


class ViewChange(Message, frozen=True):
    """Coordinator -> members: from now on this is who we are."""

    view: View


class CoordinatorEpoch(Message, frozen=True):
    """Coordinator -> a member that joins: all that I say on this connection is of this epoch."""

    epoch: int


class ClockTold(Message, frozen=True):
    """Coordinator -> a member that asked: what both clocks said, and which machine this one is of."""

    asked: float
    told: float
    machine: str


class Candidate(msgspec.Struct, frozen=True):
    """Who could be let in, and the call that its script has come to."""

    id: str
    call: int


class Candidates(Message, frozen=True):
    """Coordinator -> members: let these in at the next step on which you agree. Replaces what was said before."""

    who: tuple[Candidate, ...]


class Drain(Message, frozen=True):
    """Coordinator -> a member: stop after the step that is going on, and say Leave."""

    why: str


class SaveNow(Message, frozen=True):
    """Coordinator -> workers: a checkpoint is due. Whoever is the chief says so in its next note."""


class StackRequest(Message, frozen=True):
    """Coordinator -> a member of another host: where in your Python code are you? Answered with StackTold."""


class StackTold(Message, frozen=True):
    """Member -> coordinator: here, the last call first."""

    text: str


class Refuse(Message, frozen=True):
    """Coordinator -> whoever asked: no, and why. The connection closes after it."""

    reason: RefusalReason
    text: str


class End(Message, frozen=True):
    """Coordinator -> members and launcher: the run is over. Said once; the last word."""

    ok: bool
    code: int  # the launcher's exit code
    reason: str  # a sentence: who, at which step, doing what, since when
    culprits: tuple[str, ...] = ()  # after a good end: those who did not finish, whose exit codes do not matter
    traceback: str = ""  # what Python would have printed for the first culprit, if it could still report it
    refused: bool = False  # the reason says it all: the traceback is in the first culprit's log
    advice: str = ""
    work: WorkDone = WorkDone()  # after a good end
    finishers: int = 0  # workers that finished their script
    losses: int = 0  # workers and servers that were lost, and survived


class DrainRequest(Message, frozen=True):
    """Client -> coordinator: let this worker leave after its step. Answered with Answer."""

    member: str


class ScaleRequest(Message, frozen=True):
    """Client -> coordinator: train with this many workers from now on. Answered with Answer."""

    workers: int


class CheckpointRequest(Message, frozen=True):
    """Client -> coordinator: write a checkpoint after the step that is going on. Answered with Answer."""


class PlaceRequest(Message, frozen=True):
    """Joining host -> coordinator: one more worker could come, or a server. Answered with Place or Answer."""

    member: str = ""  # the place of one who is expected and has not come; empty: any
    own: bool = False  # on a host that the run was started on: it is no guest
    role: Role = "worker"


class JoinerPlace(Message, frozen=True):
    """Coordinator -> joining host: the member's id and the run's settings."""

    member: str
    config: RunConfig


class ServiceMessage(Message, frozen=True):
    """Member -> coordinator -> its coordinator service; and back. The coordinator does not open it."""

    content: bytes


class Answer(Message, frozen=True):
    """Coordinator -> client: what was made of a request."""

    ok: bool
    text: str
    again: bool = False  # not now, but soon


class StatusRequest(Message, frozen=True):
    """Client -> coordinator: how is the run? Answered with StatusReply."""


class MemberStatus(msgspec.Struct, frozen=True):
    """One line of `shoal status`."""

    id: str
    role: str
    pid: int
    host: str
    state: str  # "starting", "joined", "ready", "training" or "serving", "finished" or "lost"
    step: int
    phase: str
    doing: str  # the phase, and what in it
    samples_per_second: float
    silent: float  # seconds since it was last heard
    spent: TimeShares = TimeShares()  # lately
    memory: int = 0  # resident bytes
    logs: ShownLogs = msgspec.field(default_factory=dict)  # of its last step or epoch
    counted: WorkerFigures = WorkerFigures()  # in the same time as `spent`


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run ended."""

    ok: bool
    reason: str


class StatusReply(Message, frozen=True):
    """Coordinator -> client: the run as the coordinator sees it now."""

    run: str
    script: str
    backend: str
    strategy: str
    pieces: int
    threads: int
    view: int  # 0: not all have joined yet
    uptime: float
    logs: str
    members: tuple[MemberStatus, ...]
    losses: int = 0  # workers and servers that were lost
    ended: RunOutcome | None = None  # None: it goes on
    devices: str = ""  # what was found on the launcher's host and given to whom
    mesh: str = ""  # how a worker uses its devices, if they are several
    wanted: int = 0  # workers; 0: an older run's, that did not say
    plan: str = ""  # with strategy auto: the one in force


TO_COORDINATOR = MessageCodec(
    Join,
    Beat,
    SpansRecorded,
    StoryTold,
    Failed,
    Done,
    Post,
    StatusRequest,
    Ready,
    Admit,
    Decline,
    Complaint,
    Leave,
    Finished,
    Caught,
    DrainRequest,
    ScaleRequest,
    CheckpointRequest,
    PlaceRequest,
    ServiceMessage,
    StackTold,
    Follow,
    RecordKept,
)
FROM_COORDINATOR = MessageCodec(
    ViewChange,
    Refuse,
    End,
    Post,
    StatusReply,
    Candidates,
    Drain,
    SaveNow,
    Finished,
    Answer,
    JoinerPlace,
    ServiceMessage,
    ClockTold,
    StackRequest,
    CoordinatorEpoch,
    RecordEntry,
    StillCoordinating,
    LauncherGone,
)
