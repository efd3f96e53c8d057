"""Who says when a run is over, and who may come: the coordinator, be it a process of ours or far away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from shoal.cluster.launcher_pipe import MemberTold, Wanted
from shoal.cluster.messages import End
from shoal.launch.plan import ProcessPlan
from shoal.wire.messages import Message


@dataclass(frozen=True, slots=True)
class PlaceGiven:
    """A member of this id may be started with this plan."""

    id: str
    plan: ProcessPlan


CoordinatorOrder = PlaceGiven | Wanted | MemberTold | End  # what a coordinator says to those who start members


class AbstractCoordination(ABC):
    """A supervisor's side of it. Not for several threads."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable when `hear` has something to tell."""

    @abstractmethod
    def hear(self) -> list[CoordinatorOrder]:
        """What was said since; does not wait. End comes once. UsageError if the run can't be reached any more."""

    @abstractmethod
    def tell(self, message: Message) -> None:
        """What was seen of a member, or that the user wants an end."""

    @abstractmethod
    def ask(self, plan: ProcessPlan) -> PlaceGiven | None:
        """For an id that nobody had before, of one more member. None: it will be heard, or an error in its stead."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it, when nobody is left who was started."""
