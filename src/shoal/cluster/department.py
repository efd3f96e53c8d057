"""What else a coordinator may be asked to look after, besides who is there: so far, parameter servers.

A department is pure, as the membership is. Members write to it and hear from it by letters, which the coordinator
passes on unopened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Send:
    """A letter to these members."""

    to: tuple[str, ...]
    content: bytes


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


Wish = Send | Say


class Department(Protocol):
    """One department of a run."""

    def take(self, workers: Collection[str], servers: Mapping[str, str], expected: int, now: float) -> Sequence[Wish]:
        """Who is there: the view's workers, the servers and their addresses, and how many servers may be there soon."""

    def hear(self, sender: str, content: bytes, now: float) -> Sequence[Wish]:
        """A letter came. BadFrame if it is none."""

    def tick(self, now: float) -> Sequence[Wish]:
        """Time has passed."""

    def welcomes(self, call: int) -> bool:
        """Whether a worker that comes late to this call may be let in without asking the others."""

    def record(self) -> bytes:
        """What a department that takes over must know."""
