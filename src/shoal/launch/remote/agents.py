"""A launcher's agents on other hosts: started, asked what is there, given their parts, heard, ended; started again."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.cluster.launcher_pipe import Reaped, Spawned
from shoal.cluster.messages import TO_COORDINATOR, End
from shoal.cluster.succession.electorate import Electorate
from shoal.errors import BadFrame, UsageError
from shoal.launch.host_folder import HostFolder
from shoal.launch.processes import hold_interrupts
from shoal.launch.remote.channel import AgentChannel, AgentLeft, FactsTold, Go, HostOrder, Inquiry, Reached, Unable
from shoal.launch.remote.host_facts import HostFacts, advice, differences
from shoal.launch.remote.remote_shell import AbstractRemoteShell
from shoal.wire.listener import Listener
from shoal.wire.messages import Message

_LEAVE_WITHIN = {True: 33.0, False: 4.0}  # seconds, after a good end and after another
_CUT_WITHIN = 4.0  # seconds after the end of its input
_LAST_WORDS = 2.0  # seconds to wait for them
_SAID_LINES = 40


@dataclass(slots=True)
class Agent:
    """On one host."""

    host: str
    process: subprocess.Popen[bytes]
    channel: AgentChannel
    members: set[str] = field(default_factory=set)  # who lives there, or is to come
    has_left: bool = False
    listener: threading.Thread | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_SAID_LINES))  # to standard error, lately


@dataclass(frozen=True, slots=True)
class AgentLost:
    """Its channel is gone, or it gave up."""

    host: str
    why: str
    members: tuple[str, ...]
    gave_up: bool = False  # it said so: its workers died too often


@dataclass(frozen=True, slots=True)
class AgentBack:
    """A lost host has an agent again, which waits for `go`; the coordinator has not been told of these members."""

    host: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReturnFailed:
    """A lost host was tried in vain."""

    host: str
    why: str
    is_unlike: bool = False  # it would not help to try again


AgentNews = Message | AgentLost | AgentBack | ReturnFailed


class Agents:
    """One for each of these hosts. Not for several threads."""

    def __init__(self, shell: AbstractRemoteShell, hosts: Sequence[str], words: list[str]) -> None:
        """`words`: the command that is an agent there."""
        self._shell = shell
        self._words = words
        self._is_closed = False
        self.folders: dict[str, HostFolder] = {}  # for checkpoints, by host, once they were asked
        self._inquiry: Inquiry | None = None
        self._here: HostFacts | None = None
        self._orders: Mapping[str, HostOrder] = {}
        self._returns: Counter[str] = Counter()  # of hosts that were lost
        self._trying: dict[str, Agent] = {}  # lost hosts, each tried by a thread
        self._tried: deque[tuple[Agent | None, AgentBack | ReturnFailed]] = deque()
        self._closing = threading.Lock()  # a host is tried, or all are closed
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # that one was tried
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._news, selectors.EVENT_READ)
        self._agents: dict[str, Agent] = {}
        try:
            for host in hosts:
                self._take_in(self._started(host))
        except BaseException:
            self.close(None)
            raise

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def inquire(self, inquiry: Inquiry, here: HostFacts) -> dict[str, HostFacts]:
        """What each host has. UsageError names those that can't take part, or where something differs from here."""
        self._inquiry, self._here = inquiry, here
        self._tell_all({host: _asked_of(host, inquiry) for host in self._agents})
        told = self._answers(FactsTold, lambda: None)
        facts = {host: answer.facts for host, answer in told.items() if isinstance(answer, FactsTold)}
        wrong = {host: phrases for host in facts if (phrases := differences(facts[host], host, here))}
        if wrong:
            each = "; ".join(phrase for phrases in wrong.values() for phrase in phrases)
            raise UsageError(f"the hosts are not alike: {each}. {advice(tuple(p for w in wrong.values() for p in w))}.")
        self.folders = {
            host: answer.folder
            for host, answer in told.items()
            if isinstance(answer, FactsTold) and answer.folder is not None
        }
        return facts

    def order(self, orders: Mapping[str, HostOrder], probe: Listener) -> None:
        """Give each its part. UsageError names hosts that can't reach `probe`, where the coordinator will listen."""
        self._orders = orders
        for host, order in orders.items():
            self._agents[host].members = set(order.members)
        self._tell_all(orders)

        def welcome() -> None:
            for connection in probe.poll_accept(TO_COORDINATOR):
                connection.close()

        self._selector.register(probe, selectors.EVENT_READ, None)
        try:
            self._answers(Reached, welcome)
        finally:
            self._selector.unregister(probe)

    def go(self) -> None:
        """The coordinator listens, or is about to."""
        self._tell_all({host: Go() for host in self._agents})

    def tell(self, host: str, message: Message) -> None:
        """One of them."""
        self._agents[host].channel.send(message)

    def started_with(self, host: str) -> tuple[str, ...]:
        """The members that were to come from this one at first."""
        return self._orders[host].members

    def expect(self, host: str, member: str) -> None:
        """It is about to start this one."""
        self._agents[host].members.add(member)

    def bring_back(self, host: str, members: tuple[str, ...], epoch: int) -> None:
        """Start an agent on a lost host, for these workers, in a thread; `hear` tells what comes of it.

        `epoch`: of the coordinator that it finds.
        """
        order = self._orders[host]
        succession = order.succession
        if succession is not None:
            self._returns[host] += 1
            # Another voter: the one that was there has forgotten its votes.
            me = f"{host} ({self._returns[host] + 1})"
            succession = msgspec.structs.replace(succession, me=me, electorate=Electorate(()), epoch=epoch)
        config = msgspec.structs.replace(order.config, resume=None)  # the others have done that
        order = msgspec.structs.replace(order, config=config, members=members, succession=succession, resumed=None)
        threading.Thread(target=self._try, args=(host, order), name=f"shoal-return-of-{host}", daemon=True).start()

    def hear(self) -> list[tuple[str, AgentNews]]:
        """What was said since, and by which host; does not wait. `AgentLost` is the last of an agent."""
        news: list[tuple[str, AgentNews]] = self._hear_tried()
        self._flush()
        for key, _ in self._selector.select(0):
            if not isinstance(key.data, Agent):
                continue
            agent = key.data
            for message in self._receive(agent):
                match message:
                    case AgentLost():
                        pass
                    case Spawned(id):
                        agent.members.add(id)
                    case Reaped(id):
                        agent.members.discard(id)
                    case AgentLeft(reason):
                        agent.has_left = True
                        message = AgentLost(agent.host, reason, tuple(sorted(agent.members)), gave_up=True)
                        if not reason:
                            continue
                    case Unable(why):
                        agent.has_left = True
                        message = AgentLost(agent.host, why, tuple(sorted(agent.members)), gave_up=True)
                news.append((agent.host, message))
        return news

    def close(self, end: End | None, heed: Callable[[], object] = lambda: None) -> None:
        """The run is over: they end whoever is left. `heed` is called when one has said something."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            trying = tuple(self._trying.values())
        for agent in trying:
            agent.process.kill()
        until = time.monotonic() + _LEAVE_WITHIN[end is not None and end.ok]
        if end is not None:
            for agent in self._agents.values():
                agent.channel.send(end)
            self._await_end(until, heed)
        for agent in self._agents.values():
            assert agent.process.stdin is not None
            with contextlib.suppress(OSError):
                agent.process.stdin.close()
        self._await_end(time.monotonic() + _CUT_WITHIN, heed)
        for agent in self._agents.values():
            _bury(agent)
        for tried, _ in self._tried:
            if tried is not None:
                _bury(tried)
        self._selector.close()
        with self._closing:
            os.close(self._news)

    def _started(self, host: str) -> Agent:
        command = self._shell.command(host, self._words)
        pipe = subprocess.PIPE
        try:
            # A session of its own: Ctrl-C reaches the launcher alone.
            with hold_interrupts():
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise UsageError(f"can't start {command[0]}: {error.strerror}. Is it installed?") from error
        assert process.stdin is not None
        assert process.stdout is not None
        agent = Agent(host, process, AgentChannel(process.stdout.fileno(), process.stdin.fileno(), at_agent=False))
        agent.listener = threading.Thread(target=_listen, args=(agent,), name=f"shoal-errors-of-{host}", daemon=True)
        agent.listener.start()
        return agent

    def _take_in(self, agent: Agent) -> None:
        self._agents[agent.host] = agent
        self._selector.register(agent.channel, selectors.EVENT_READ, agent)

    def _try(self, host: str, order: HostOrder) -> None:
        """In a thread."""
        agent = None
        try:
            agent = self._started(host)
            with self._closing:
                self._trying[host] = agent
                if self._is_closed:
                    agent.process.kill()
            timer = threading.Timer(self._shell.answer_within, agent.process.kill)
            timer.start()
            try:
                outcome: AgentBack | ReturnFailed = self._converse(agent, order)
            finally:
                timer.cancel()
                timer.join()
        except UsageError as error:
            outcome = ReturnFailed(host, str(error))
        except (EOFError, BadFrame) as error:
            assert agent is not None
            outcome = ReturnFailed(host, self._why_gone(agent, error))
        if agent is not None and isinstance(outcome, ReturnFailed):
            _bury(agent)
            agent = None
        with self._closing:
            if not self._is_closed:
                self._tried.append((agent, outcome))
                os.eventfd_write(self._news, 1)
                return
        if agent is not None:
            _bury(agent)

    def _converse(self, agent: Agent, order: HostOrder) -> AgentBack | ReturnFailed:
        """As with all agents at the start. EOFError, BadFrame."""
        assert self._inquiry is not None
        assert self._here is not None
        agent.members = set(order.members)
        agent.channel.send(_asked_of(agent.host, self._inquiry))
        told = agent.channel.next()
        if isinstance(told, FactsTold) and (phrases := differences(told.facts, agent.host, self._here)):
            return ReturnFailed(agent.host, f"it is not alike any more: {'; '.join(phrases)}", is_unlike=True)
        if isinstance(told, FactsTold):
            agent.channel.send(order)
            told = agent.channel.next()
        return ReturnFailed(agent.host, told.why) if isinstance(told, Unable) else AgentBack(agent.host, order.members)

    def _hear_tried(self) -> list[tuple[str, AgentNews]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)
        news: list[tuple[str, AgentNews]] = []
        while self._tried:
            agent, outcome = self._tried.popleft()
            self._trying.pop(outcome.host, None)
            if agent is not None:
                _bury(self._agents[agent.host])
                self._take_in(agent)
            news.append((outcome.host, outcome))
        return news

    def _flush(self) -> None:
        """What an agent had no room for when it was said."""
        for agent in self._agents.values():
            agent.channel.flush()

    def _tell_all(self, messages: Mapping[str, Message]) -> None:
        for host, message in messages.items():
            self._agents[host].channel.send(message)

    def _answers(self, kind: type[Message], meanwhile: Callable[[], None]) -> dict[str, Message]:
        """One from each. UsageError names those from whom another came, or none."""
        answers: dict[str, Message] = {}
        wrong: dict[str, str] = {}
        until = time.monotonic() + self._shell.answer_within
        while (missing := self._agents.keys() - answers.keys() - wrong.keys()) and time.monotonic() < until:
            self._flush()
            for key, _ in self._selector.select(1.0):
                meanwhile()
                if not isinstance(key.data, Agent):
                    continue
                for message in self._receive(key.data):
                    match message:
                        case AgentLost(host, why):
                            wrong.setdefault(host, why)
                        case Unable(why):
                            wrong[key.data.host] = f"{why}."
                        case _ if isinstance(message, kind):
                            answers[key.data.host] = message
        wrong |= {
            host: f"it did not answer within {self._shell.answer_within:.0f} s."
            for host in missing
            if host not in answers
        }
        if wrong:
            raise UsageError("\n  ".join(f"{host}: {why}" for host, why in sorted(wrong.items())))
        return answers

    def _receive(self, agent: Agent) -> list[Message | AgentLost]:
        try:
            return list(agent.channel.receive())
        except (EOFError, BadFrame) as error:
            self._selector.unregister(agent.channel)
            if agent.has_left:
                return []
            why = self._why_gone(agent, error)
            agent.process.kill()  # its workers count as dead: none may live on there
            return [AgentLost(agent.host, why, tuple(sorted(agent.members)))]

    def _why_gone(self, agent: Agent, error: Exception) -> str:
        if isinstance(error, BadFrame):
            return f"{error}. Does a start-up file of its shell print something?"
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.process.wait(_LAST_WORDS)
        if agent.listener is not None:
            agent.listener.join(_LAST_WORDS)
        return self._shell.explain(agent.host, agent.process.poll() or 0, "\n".join(agent.said))

    def _await_end(self, until: float, heed: Callable[[], object]) -> None:
        while time.monotonic() < until and any(agent.process.poll() is None for agent in self._agents.values()):
            self._selector.select(0.05)
            self._flush()
            heed()
        heed()


def _asked_of(host: str, inquiry: Inquiry) -> Inquiry:
    """With its name, where that matters."""
    if inquiry.checkpoints is None:
        return inquiry
    return msgspec.structs.replace(inquiry, checkpoints=msgspec.structs.replace(inquiry.checkpoints, host=host))


def _bury(agent: Agent) -> None:
    agent.process.kill()
    agent.process.wait()
    for stream in (agent.process.stdout, agent.process.stdin):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _listen(agent: Agent) -> None:
    """In a thread: what ssh says, and Python, before an agent is there to say it in order."""
    assert agent.process.stderr is not None
    with agent.process.stderr as stream:
        for line in stream:
            agent.said.append(line.decode(errors="replace").rstrip())


def agent_words(python: str) -> list[str]:
    """The command that is an agent. -P: what lies in the current folder must not hide installed packages."""
    return [python, "-P", "-m", "shoal", "agent"]
