"""Members and a membership to talk to."""

from __future__ import annotations

from shoal.cluster.events import Decision, Event, Said, Tell
from shoal.cluster.identity import Identity
from shoal.cluster.membership import Membership
from shoal.cluster.messages import End, Join
from shoal.cluster.view import Member
from shoal.config import Deadlines, RunConfig
from shoal.wire.messages import Message

IDENTITY = Identity("jax", "0.10", "3.15", "2.4", 1, 2, "x86_64 avx2")


COORDINATOR = Member("coordinator", "coordinator", 99, "here", "unix:/run/coordinator.sock")


def config(workers: int = 2, **more: object) -> RunConfig:
    return RunConfig("r1", workers, 1, "jax", "train.py", deadlines=Deadlines(), **more)  # type: ignore[arg-type]


def member(number: int) -> Member:
    return Member(f"worker-{number}", "worker", 100 + number, "here", f"unix:/run/worker-{number}.sock")


class Scene:
    """A membership and the time. Worker n talks on link n + 1."""

    def __init__(self, workers: int = 2, joined: bool = True) -> None:
        self.now = 0.0
        self.membership = Membership(config(workers), COORDINATOR, self.now)
        if joined:
            for number in range(workers):
                self.say(number, Join(member(number), IDENTITY))

    def happen(self, event: Event, after: float = 0.0) -> list[Decision]:
        self.now += after
        return self.membership.handle(event, self.now)

    def say(self, number: int, message: Message, after: float = 0.0) -> list[Decision]:
        return self.happen(Said(number + 1, message), after)

    @property
    def end(self) -> End:
        assert self.membership.end is not None, "the run goes on"
        return self.membership.end


def told(decisions: list[Decision], link: int) -> list[Message]:
    """What was told on this link."""
    return [decision.message for decision in decisions if isinstance(decision, Tell) and link in decision.links]
