"""A coordinator that is started here, for a run with agents on other hosts: it hears of their workers' deaths, too."""

from __future__ import annotations

import os
import re
import selectors
import sys
from pathlib import Path
from signal import SIGKILL

from shoal.cluster.launcher_pipe import Dying, MemberTold, Reaped
from shoal.launch.logs import path_of
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote.agents import AgentLost, Agents
from shoal.launch.remote.channel import LogText, Printed
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.wire.messages import Message

_MEMBER = re.compile(r"(worker|server)-[0-9]{1,9}")


class AgentsCoordination(AbstractCoordination):
    """Whoever made what it is given closes it."""

    def __init__(self, inner: LocalCoordination, agents: Agents, logs: Path, shows: bool) -> None:
        """`logs`: a folder for those of all hosts. `shows`: what the others print is for the user, too."""
        self._inner = inner
        self._agents = agents
        self._logs = logs
        self._shows = shows
        self._partial: dict[str, bytes] = {}  # lines that are not whole
        self._selector = selectors.DefaultSelector()
        self._selector.register(inner, selectors.EVENT_READ)
        self._selector.register(agents, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def hear(self) -> list[CoordinatorOrder]:
        return [*self.heed_agents(), *self._inner.hear()]

    def tell(self, message: Message) -> None:
        self._inner.tell(message)

    def ask(self, plan: ProcessPlan) -> PlaceGiven | None:
        return self._inner.ask(plan)

    def close(self) -> None:
        self._selector.close()

    def heed_agents(self) -> list[CoordinatorOrder]:
        """What they said since; does not wait."""
        orders: list[CoordinatorOrder] = []
        for host, message in self._agents.hear():
            match message:
                case Dying() | Reaped():
                    self._inner.tell(message)
                case Printed(stream, data):
                    _print(stream, data)
                case LogText(log, data):
                    self._keep(host, log, data)
                case AgentLost(_, why, members):
                    orders.append(MemberTold(f"the agent on {host} is gone, and its workers with it: {why}"))
                    for id in members:
                        self._inner.tell(Reaped(id, -SIGKILL))
        return orders

    def _keep(self, host: str, log: str, data: bytes) -> None:
        """Where the other workers' logs are. A host names only logs of members; all else of it is its own."""
        name = log if _MEMBER.fullmatch(log) else f"{_harmless(log)}@{_harmless(host)}"
        try:
            with path_of(self._logs, name).open("ab") as file:
                file.write(data)
        except OSError:
            pass  # the host has it
        if self._shows:
            *lines, self._partial[name] = (self._partial.get(name, b"") + data).split(b"\n")
            for line in lines:
                print(f"[{name}] {line.decode(errors='replace')}", file=sys.stderr, flush=True)


def _print(stream: int, data: bytes) -> None:
    out = sys.stdout if stream == 1 else sys.stderr
    out.flush()
    fd = out.fileno()
    while data:
        data = data[os.write(fd, data) :]


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
