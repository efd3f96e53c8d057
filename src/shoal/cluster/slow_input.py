"""Workers that wait for their data, as lines of the story. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.cluster.storyteller import StoryLine
from shoal.cluster.view import number_of
from shoal.observe.amounts import percent
from shoal.observe.phases import TimeUse
from shoal.observe.story import StoryKind

MUCH, LITTLE = 0.3, 0.15  # of the last seconds: from which on it is told, and below which it is over
LASTING = 5.0  # seconds
PAUSE = 60.0  # seconds until it may be told again; twice as many each time


class SlowInput:
    """Looks at the run now and then. What it tells becomes rarer and rarer."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._may_tell, self._pause = 0.0, PAUSE

    def of(self, reply: StatusReply, now: float) -> list[StoryLine]:
        workers = [member for member in reply.members if member.role == "worker" and member.state == "training"]
        late = max(workers, key=_reading, default=None)
        if late is None or _reading(late) < LITTLE:
            self._since = None
        elif self._since is None and _reading(late) >= MUCH:
            self._since = now
        if late is None or self._since is None or now - self._since < LASTING or now < self._may_tell:
            return []
        self._may_tell, self._pause = now + self._pause, 2 * self._pause
        self._since = None
        return [StoryLine(StoryKind.DATA, _text(late, workers), late.id, late.step)]


def _reading(member: MemberStatus) -> float:
    return member.spent.share(TimeUse.READING)


def _text(late: MemberStatus, workers: Sequence[MemberStatus]) -> str:
    waits = f"{late.id} waits for data {percent(_reading(late))} of the time"
    if late.counted.streams:
        chief = min(workers, key=lambda member: number_of(member.id))
        return f"{waits}: {chief.id} reads for all"
    others = [member.spent.share(TimeUse.WAITING) for member in workers if member is not late]
    if others and not late.counted.asynchronous and min(others) >= LITTLE:
        return f"{waits}, and the others wait for it"
    return f"{waits}, which it reads itself"
