"""What else a coordinator may be asked to look after, besides who is there: so far, parameter servers.

It is pure, as the membership is. What members and the service say to each other, the coordinator passes on unopened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Say this to these members."""

    to: tuple[str, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class SayToUser:
    """Tell the user."""

    text: str


Wish = SendMessage | SayToUser


@dataclass(frozen=True, slots=True)
class ServiceLog:
    """What a service has written down: what its `record` once gave, and its `changes` since."""

    record: bytes
    changes: tuple[bytes, ...] = ()


class CoordinatorService(Protocol):
    """One coordinator service of a run."""

    def take(
        self,
        workers: Collection[str],
        servers: Mapping[str, str],
        expected: int,
        now: float,
        hosts: Mapping[str, str],
    ) -> Sequence[Wish]:
        """Who is there: the view's workers, the servers and their addresses, how many servers may be there soon, and on
        which host each server is.
        """

    def hear(self, sender: str, content: bytes, now: float) -> Sequence[Wish]:
        """A member has said something. BadFrame if it is no message to this service."""

    def tick(self, now: float) -> Sequence[Wish]:
        """Time has passed."""

    def welcomes(self, call: int) -> bool:
        """Whether a worker that comes late to this call may be let in without asking the others."""

    def abandon(self, call: int, now: float) -> Sequence[Wish]:
        """A call of the script is over, since it raised: nobody does anything for it any more."""

    def record(self) -> bytes:
        """What a coordinator service that takes over must know: all of it."""

    def changes(self) -> Sequence[bytes]:
        """What has happened since this was last asked. With the record from then, it is what `record` would give."""
