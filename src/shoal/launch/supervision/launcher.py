"""How members are started on a host, and how their deaths are told.

A supervisor has one launcher for each host of its plan and asks for nothing but these verbs. Another kind may start an
agent on a host, by whatever means, and pass the verbs on to it: what it hears are messages that can travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from signal import Signals

from shoal.cluster.launcher_pipe import Dying, Reaped, Spawned
from shoal.launch.plan import ProcessPlan

MemberEvent = Spawned | Dying | Reaped  # what is told of a member


class AbstractLauncher(ABC):
    """Starts members on one host and tells of their lives. Not for several threads."""

    @abstractmethod
    def start(self, id: str, plan: ProcessPlan) -> None:
        """Let there be this member; does not wait for it. Where that can't be, `hear` tells of its death."""

    @abstractmethod
    def release(self, id: str) -> None:
        """A member of which `Spawned` was told may begin: the coordinator knows of it, and will not refuse it."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable when `hear` has something to tell."""

    @abstractmethod
    def hear(self) -> list[MemberEvent]:
        """What has happened since; does not wait. Of each `Spawned`, perhaps `Dying`, and `Reaped`, once each."""

    @abstractmethod
    def signal(self, number: Signals) -> None:
        """To all of its members that live."""

    @abstractmethod
    def close(self) -> None:
        """End whoever is left, with all that members have started there."""
