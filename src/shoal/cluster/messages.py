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
from shoal.cluster.view import Member, View
from shoal.config import RunConfig
from shoal.wire.messages import Codec, Message

POST_LIMIT = 64 * 1024  # bytes of one posted value: posts are for facts, not for tensors
RESULT_LIMIT = 512 * 1024  # bytes of what a call returned that are kept for those who come late
NOT_KEPT = b""  # in the place of a result that is larger
TEXT_LIMIT = 32 * 1024  # characters of an error or a traceback


class Reason(Enum):
    """Why a request was refused."""

    UNKNOWN_MEMBER = "unknown member"
    TAKEN = "id is taken"
    UNLIKE = "numeric identity differs"
    NOT_JOINED = "not joined"
    OUTSIDE = "the run went on without it"
    OVER = "the run is over"


class Join(Message, frozen=True):
    """Member -> coordinator: count me in. Answered with the first ViewChange, Refuse or End."""

    member: Member
    identity: Identity


class Beat(Message, frozen=True):
    """Member -> coordinator: I am alive; this is what I do. Not answered."""

    step: int = 0
    doing: str = "starting"
    lasting: float = 0.0  # seconds it has been doing this, by its own clock
    samples_per_second: float = 0.0
    exchanging: bool = False  # it can't go on until every other worker came to the same exchange


class Failed(Message, frozen=True):
    """Member -> coordinator: my script ended with this error. Answered with End."""

    step: int
    doing: str
    kind: str  # the exception's class
    error: str  # its text
    traceback: str
    blames: tuple[str, ...] = ()  # members whose absence caused it: the error is a consequence
    code: int = 1  # the exit code the script asked for, or 1
    of_all: bool = False  # every worker comes to it, some perhaps too late to say so


class Done(Message, frozen=True):
    """Member -> coordinator: my script has finished. Answered with End when all have."""

    step: int


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


class Leave(Message, frozen=True):
    """Member -> coordinator: I have stopped between two steps and give up my seat."""


class Finished(Message, frozen=True):
    """Member -> coordinator -> late members: what the `call`-th call of the script returned."""

    call: int
    result: bytes


class ViewChange(Message, frozen=True):
    """Coordinator -> members: from now on this is who we are."""

    view: View


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


class Refuse(Message, frozen=True):
    """Coordinator -> whoever asked: no, and why. The connection closes after it."""

    reason: Reason
    text: str


class End(Message, frozen=True):
    """Coordinator -> members and launcher: the run is over. Said once; the last word."""

    ok: bool
    code: int  # the launcher's exit code
    reason: str  # a sentence: who, at which step, doing what, since when
    culprits: tuple[str, ...] = ()  # after a good end: those who did not finish, whose exit codes do not matter
    traceback: str = ""  # the first culprit's, if it could still report one
    advice: str = ""


class DrainRequest(Message, frozen=True):
    """Client -> coordinator: let this worker leave after its step. Answered with Answer."""

    member: str


class ScaleRequest(Message, frozen=True):
    """Client -> coordinator: train with this many workers from now on. Answered with Answer."""

    workers: int


class PlaceRequest(Message, frozen=True):
    """Joining host -> coordinator: one more worker could come. Answered with Place or Answer."""


class Place(Message, frozen=True):
    """Coordinator -> joining host: the worker's id and the run's settings."""

    member: str
    config: RunConfig


class Letter(Message, frozen=True):
    """Member -> coordinator -> its department; and back. The coordinator does not open it."""

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
    doing: str
    samples_per_second: float
    silent: float  # seconds since it was last heard


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


TO_COORDINATOR = Codec(
    Join,
    Beat,
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
    DrainRequest,
    ScaleRequest,
    PlaceRequest,
    Letter,
)
FROM_COORDINATOR = Codec(ViewChange, Refuse, End, Post, StatusReply, Candidates, Drain, Finished, Answer, Place, Letter)
