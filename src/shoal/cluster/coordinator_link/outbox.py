"""What a member has to say to the coordinator, and what it says again to one that comes in its place. Pure."""

from __future__ import annotations

from collections import deque

from shoal.cluster.messages import Beat, Join, SpansRecorded, StackTold, StoryTold
from shoal.wire.messages import Message

REPEATED = 64  # messages that a new coordinator is told again


class Outbox:
    """In order. The link guards it with its lock; only the link's thread takes out of it."""

    def __init__(self) -> None:
        self._unsent: deque[Message] = deque()
        self._said: deque[Message] = deque(maxlen=REPEATED)  # for a coordinator that has heard nothing yet

    def add(self, message: Message) -> None:
        """Behind all others."""
        self._unsent.append(message)

    def first(self) -> Message | None:
        """What is to be sent next; say `sent` afterwards."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """The first was."""
        message = self._unsent.popleft()
        is_once = isinstance(message, Beat | Join | SpansRecorded | StackTold | StoryTold)
        if not is_once and message not in self._said:
            self._said.append(message)

    def begin_again(self, join: Join) -> None:
        """There is another coordinator: join it, and repeat what the old one may not have heard."""
        self._unsent.extendleft(reversed([join, *self._said]))

    @property
    def is_empty(self) -> bool:
        return not self._unsent

    @property
    def has_spans(self) -> bool:
        """Whether some of the member's record is still on its way."""
        return any(isinstance(message, SpansRecorded) for message in tuple(self._unsent))
