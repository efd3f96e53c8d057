"""What hosts say to each other about who coordinates the run. Every message has the epoch of who says it.

An epoch has at most one coordinator: whoever a quorum of hosts has voted for in it. Who hears of a later epoch than its
own knows that it is behind: a coordinator stops, a voter forgets whom it followed.
"""

from __future__ import annotations

import msgspec

from shoal.cluster.succession.electorate import Electorate, RecordPosition
from shoal.wire.messages import Message, MessageCodec


class HostSeat(msgspec.Struct, frozen=True):
    """Where a voter is."""

    address: str  # at which other hosts reach it
    place: str  # as its host's workers have it (evidence.py:this_place)


class VoteRequest(Message, frozen=True):
    """Host -> host: let my coordinator be the one of this epoch. Answered with Vote."""

    epoch: int
    candidate: str
    position: RecordPosition  # of the candidate's copy of the record
    is_trial: bool  # would you? Nobody is bound by the answer, so one that was cut off disturbs nobody


class Vote(Message, frozen=True):
    """Host -> candidate: yes or no."""

    epoch: int  # the voter's
    voter: str
    granted: bool
    asked: int  # the epoch of the request
    is_trial: bool


class CoordinatorAt(Message, frozen=True):
    """Host -> host: the coordinator of this epoch is mine, and listens there. Answered with Heeded."""

    epoch: int
    host: str
    address: str


class Heeded(Message, frozen=True):
    """Host -> host: the epoch that I know. If it is a later one, the coordinator that was announced is none."""

    epoch: int
    voter: str


class Follow(Message, frozen=True):
    """Host -> coordinator: send me your record from here on. Answered with Refuse, or with what was asked for."""

    epoch: int
    voter: str
    seat: HostSeat
    position: RecordPosition


class RecordKept(Message, frozen=True):
    """Host -> coordinator: I have your record up to here."""

    epoch: int
    index: int


class RecordEntry(Message, frozen=True):
    """Coordinator -> host: what it has written. Answered with RecordKept."""

    epoch: int
    index: int  # 0: it does not count by itself; an entry that counts follows
    electorate: Electorate
    content: bytes = b""  # of the log; empty: only the electorate is new
    anew: bool = False  # it replaces all that was written before
    more: bool = False  # the content goes on in the next one
    call: int | None = None  # `content` is what this call of the script returned


class StillCoordinating(Message, frozen=True):
    """Coordinator -> host: I am here, and hosts that are enough hear me."""

    epoch: int
    seats: dict[str, HostSeat]  # by voter


class LauncherGone(Message, frozen=True):
    """Coordinator -> host: whoever has started the run is gone, and its host is not: all of it is to end."""

    epoch: int


BETWEEN_HOSTS = MessageCodec(VoteRequest, Vote, CoordinatorAt, Heeded)
