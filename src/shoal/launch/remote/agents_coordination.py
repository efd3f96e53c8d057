"""A coordinator that is started here, for a run with agents on other hosts: it hears of their workers' deaths, too."""

from __future__ import annotations

import re
import selectors
import time
from pathlib import Path
from signal import SIGKILL

from shoal.cluster.launcher_pipe import Awaited, Dying, Interrupt, MemberTold, Reaped
from shoal.cluster.messages import End
from shoal.cluster.succession.election import StopCoordinator
from shoal.launch.logs import path_of
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote.agents import AgentBack, AgentLost, Agents, ReturnFailed
from shoal.launch.remote.channel import Go, LogText, PlaceGranted, PlaceWanted, Printed
from shoal.launch.remote.host_keeper import SILENCE, HostKeeper
from shoal.launch.remote.return_times import ReturnTimes
from shoal.launch.remote.terminal_output import TerminalOutput
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.wire.messages import Message

_SHOWN_WITHIN = 2.0  # seconds, if the terminal takes nothing

_MEMBER = re.compile(r"(worker|server)-[0-9]{1,9}")


class AgentsCoordination(AbstractCoordination):
    """Whoever made what it is given closes it."""

    def __init__(
        self,
        inner: LocalCoordination,
        agents: Agents,
        logs: Path,
        shows: bool,
        keeper: HostKeeper | None = None,
        patience: float = 20.0,
    ) -> None:
        """`logs`: a folder for those of all hosts. `shows`: what the others print is for the user, too.

        `keeper`: of a run that outlives the loss of this host. `patience`: seconds without hosts that are enough.
        """
        self._inner = inner
        self._agents = agents
        self._keeper = keeper
        self._patience = patience
        self._interrupt: Interrupt | None = None
        self._interrupted_at = 0.0
        self._logs = logs
        self._shows = shows
        self._returns = ReturnTimes()
        self._returning: dict[str, tuple[str, ...]] = {}  # by host: who is to come from there when it is back
        self._said: dict[str, str] = {}  # by host: why it is not back yet
        self._is_over = False
        self._partial: dict[str, bytes] = {}  # lines that are not whole
        self._terminal = TerminalOutput()
        self._selector = selectors.DefaultSelector()
        self._selector.register(inner, selectors.EVENT_READ)
        self._selector.register(agents, selectors.EVENT_READ)
        if keeper is not None:
            self._selector.register(keeper, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def hear(self) -> list[CoordinatorOrder]:
        orders = [*self.heed_agents(), *self._inner.hear(), *self._heed_election()]
        if not self._is_over and not any(isinstance(order, End) for order in orders):
            orders += self._heed_silence()
        self._is_over |= any(isinstance(order, End) for order in orders)
        if not self._is_over:
            for host in self._returns.take_due(time.monotonic()):
                epoch = self._keeper.epoch if self._keeper is not None else 1
                self._agents.bring_back(host, self._returning[host], epoch)
        return orders

    def _heed_election(self) -> list[CoordinatorOrder]:
        """Whether the coordinator is to be started again, or is none any more."""
        for order in self._keeper.take_orders() if self._keeper is not None and not self._is_over else ():
            if isinstance(order, StopCoordinator):
                self._inner.stop()
                text = f"the other hosts have gone on without this one, which was cut off: {order.why}"
                return [End(ok=False, code=1, reason=text)]
            self._inner.start_again()
        return []

    def _heed_silence(self) -> list[CoordinatorOrder]:
        """Without hosts that are enough the coordinator decides nothing, not even that the run is over."""
        if self._keeper is None:
            return []
        may_give_up = self._keeper.has_heard and not self._keeper.is_asking  # at first, hosts may need long to come
        asked_for = time.monotonic() - self._interrupted_at
        end = end_without_hosts(self._keeper.unheard_for(), self._patience, may_give_up, self._interrupt, asked_for)
        return [end] if end is not None else []

    def tell(self, message: Message) -> None:
        if isinstance(message, Interrupt) and self._interrupt is None:
            self._interrupt, self._interrupted_at = message, time.monotonic()
        self._inner.tell(message)

    def ask(self, plan: ProcessPlan) -> PlaceGiven | None:
        return self._inner.ask(plan)

    def show_rest(self) -> None:
        """The run is over: what workers printed last comes before what is said about its end."""
        self._terminal.drain(_SHOWN_WITHIN)

    def close(self) -> None:
        self._selector.close()
        self._terminal.close()

    def heed_agents(self) -> list[CoordinatorOrder]:
        """What they said since; does not wait."""
        orders: list[CoordinatorOrder] = []
        for host, message in self._agents.hear():
            match message:
                case Dying() | Reaped():
                    self._inner.tell(message)
                case Printed(stream, data):
                    self._terminal.write(stream, data)
                case LogText(log, data):
                    self._keep(host, log, data)
                case PlaceWanted(place):
                    id = self._await(place)
                    self._agents.expect(host, id)
                    self._agents.tell(host, PlaceGranted(place, id))
                case AgentLost(_, why, members, gave_up):
                    for id in members:
                        self._inner.tell(Reaped(id, -SIGKILL))
                    later = "" if gave_up or self._is_over else f" It is tried again in {self._lose(host):.0f} s."
                    orders.append(
                        MemberTold(f"the agent on {host} is gone, and its workers with it: {why.rstrip('. ')}.{later}")
                    )
                case AgentBack(_, members):
                    self._returns.succeed(host, time.monotonic())
                    self._said.pop(host, None)
                    for id in members:
                        self._inner.tell(Awaited(id))
                    self._agents.tell(host, Go())
                    orders.append(MemberTold(f"{host} is back, with {', '.join(members)}"))
                case ReturnFailed():
                    orders += self._try_later(message)
        return orders

    def _await(self, place: str) -> str:
        """A number that nobody had before, of one more of this run's own workers; the coordinator is told."""
        id = self._number(place)
        self._inner.tell(Awaited(id))
        return id

    def _number(self, place: str) -> str:
        return self._inner.ask(ProcessPlan(place, (), {})).id

    def _lose(self, host: str) -> float:
        """Returns the seconds until it is tried."""
        self._returning[host] = tuple(self._number(member) for member in self._agents.started_with(host))
        return self._returns.lose(host, time.monotonic())

    def _try_later(self, failed: ReturnFailed) -> list[CoordinatorOrder]:
        """Why it is not back is told once, not at every attempt."""
        if failed.is_unlike:
            self._returns.give_up(failed.host)
            return [MemberTold(f"{failed.host} is back, but takes no part: {failed.why}")]
        self._returns.fail(failed.host, time.monotonic())
        if self._said.get(failed.host) == failed.why:
            return []
        self._said[failed.host] = failed.why
        return [MemberTold(f"{failed.host} is not back yet: {failed.why.rstrip('. ')}. It is tried again and again.")]

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
                self._terminal.write(2, b"[%s] %s\n" % (name.encode(), line))


def end_without_hosts(
    unheard: float, patience: float, may_give_up: bool, interrupt: Interrupt | None, asked_for: float
) -> End | None:
    """The end of a run whose coordinator has had too few hosts for so many seconds, if it has come. Pure.

    `asked_for`: seconds since the interrupt. A coordinator that may decide has answered it by then.
    """
    if interrupt is not None and min(unheard, asked_for) > SILENCE:
        text = f"{interrupt.why}; no last checkpoint is written, since too few hosts answer to agree on one"
        return End(ok=False, code=interrupt.code, reason=text)
    if not may_give_up or unheard <= patience:
        return None
    text = (
        f"too few hosts have answered for {unheard:.0f} s (deadline {patience:.0f} s): those that are left may not go "
        "on alone. If the others are not still training, start the run again; if it wrote checkpoints, with --resume."
    )
    return End(ok=False, code=1, reason=text)


def _harmless(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
