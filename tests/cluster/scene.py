"""Members and a membership to talk to."""

from __future__ import annotations

from shoal.cluster.events import Decision, Event, KeepResult, ReportTrouble, Said, Started, Tell, TellResults
from shoal.cluster.identity import Identity
from shoal.cluster.membership import Membership
from shoal.cluster.messages import End, Finished, Join, Ready, ViewChange
from shoal.cluster.view import Member, View
from shoal.config import Deadlines, RunConfig
from shoal.wire.messages import Message

IDENTITY = Identity("jax", "0.10", "3.15", "2.4", 1, 2, "x86_64 avx2")


COORDINATOR = Member("coordinator", "coordinator", 99, "here", "this one", "unix:/run/coordinator.sock")


def config(workers: int = 2, **more: object) -> RunConfig:
    return RunConfig("r1", workers, 1, "jax", "train.py", deadlines=Deadlines(), **more)  # type: ignore[arg-type]


def member(number: int) -> Member:
    return Member(f"worker-{number}", "worker", 100 + number, "here", "this one", f"unix:/run/worker-{number}.sock")


class Scene:
    """A membership and the time. Worker n talks on link n + 1."""

    def __init__(self, workers: int = 2, joined: bool = True, least: int | None = None) -> None:
        self.now = 0.0
        self.results: dict[int, bytes] = {}
        self.membership = Membership(config(workers, least=least), COORDINATOR, self.now)
        if joined:
            for number in range(workers):
                self.say(number, Join(member(number), IDENTITY))

    def happen(self, event: Event, after: float = 0.0) -> list[Decision]:
        """What is decided; with results as they are read for those who are told them."""
        self.now += after
        decisions = self.membership.handle(event, self.now)
        self.results |= {it.call: it.result for it in decisions if isinstance(it, KeepResult)}
        return [told for decision in decisions for told in self._read(decision)]

    def _read(self, decision: Decision) -> list[Decision]:
        match decision:
            case TellResults(links, calls):
                return [Tell(links, Finished(call, self.results[call])) for call in calls]
            case KeepResult():
                return []
        return [decision]

    def say(self, number: int, message: Message, after: float = 0.0) -> list[Decision]:
        return self.happen(Said(number + 1, message), after)

    def come_late(self, number: int, call: int | None = None) -> list[Decision]:
        """A worker that the launcher started later joins, and waits at a call if there is one to wait at."""
        self.happen(Started(f"worker-{number}"))
        joined = self.say(number, Join(member(number), IDENTITY))
        return joined if call is None else self.say(number, Ready(call))

    @property
    def end(self) -> End:
        assert self.membership.end is not None, "the run goes on"
        return self.membership.end


def told(decisions: list[Decision], link: int) -> list[Message]:
    """What was told on this link."""
    return [decision.message for decision in decisions if isinstance(decision, Tell) and link in decision.links]


def new_view(decisions: list[Decision]) -> View | None:
    """The view that was published, if one was; everyone is told the same."""
    tells = [d for d in decisions if isinstance(d, Tell) and isinstance(d.message, ViewChange)]
    assert len(tells) <= 1, "two views at once"
    return tells[0].message.view if tells else None  # type: ignore[attr-defined]


def ids(view: View | None) -> list[str]:
    assert view is not None, "there is no new view"
    return [one.id for one in view.workers]


def reports(decisions: list[Decision]) -> list[str]:
    """What the user is told."""
    return [decision.text for decision in decisions if isinstance(decision, ReportTrouble)]
