"""Calls the coordinator's service, if there is one, and makes decisions of its wishes. Pure, as the service is."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.coordinator_service import CoordinatorService, SayToUser, SendMessage, Wish
from shoal.cluster.events import Decision, ReportTrouble, Tell
from shoal.cluster.membership.roster import Roster
from shoal.cluster.messages import ServiceMessage
from shoal.cluster.view import View, host_of


class ServiceCaller:
    """The service of a run; without one, nothing is asked and nothing wished."""

    def __init__(self, service: CoordinatorService | None, roster: Roster) -> None:
        self._service = service
        self._roster = roster

    def hear(self, id: str, content: bytes, now: float) -> list[Decision]:
        """A member has said this to it. BadFrame if it is no message to this service."""
        if self._service is None:
            raise TypeError("ServiceMessage came, but this run's coordinator has no service")
        return self._fulfil(self._service.hear(id, content, now))

    def tick(self, now: float) -> list[Decision]:
        """Time has passed."""
        return self._fulfil(self._service.tick(now)) if self._service is not None else []

    def abandon(self, call: int, now: float) -> list[Decision]:
        """A call of the script is over, since it raised."""
        return self._fulfil(self._service.abandon(call, now)) if self._service is not None else []

    def take(self, view: View, now: float) -> list[Decision]:
        """Tell it who is there."""
        if self._service is None:
            return []
        here = self._roster.servers()
        servers = {id: member.address for id, member in here.items()}
        hosts = {id: host_of(member) for id, member in here.items()}
        workers = [member.id for member in view.workers]
        return self._fulfil(self._service.take(workers, servers, self._roster.expected_servers(), now, hosts))

    def welcomes(self, view: View, most: int) -> tuple[str, ...]:
        """Whom to let in at once, since it has something to do for them."""
        if self._service is None:
            return ()
        waiting = [(id, state) for id, state in self._roster.members.items() if state.ready is not None]
        welcome = tuple(
            id
            for id, state in waiting
            if state.ready is not None and state.counts and not view.has(id) and self._service.welcomes(state.ready)
        )
        return welcome[: max(0, most - len(view.workers))]

    def record(self) -> bytes | None:
        """What one that takes over must know."""
        return self._service.record() if self._service is not None else None

    def changes(self) -> tuple[bytes, ...]:
        """What has happened to it since this was last asked."""
        return tuple(self._service.changes()) if self._service is not None else ()

    def _fulfil(self, wishes: Sequence[Wish]) -> list[Decision]:
        decisions: list[Decision] = []
        for wish in wishes:
            match wish:
                case SendMessage(to, content):
                    links = self._roster.links_of(to)
                    decisions += [Tell(links, ServiceMessage(content))] if links else []
                case SayToUser(text):
                    decisions.append(ReportTrouble(text))
        return decisions
