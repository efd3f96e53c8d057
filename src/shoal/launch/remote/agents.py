"""A launcher's agents on other hosts: started, asked what is there, given their parts, heard, ended."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.cluster.launcher_pipe import Reaped, Spawned
from shoal.cluster.messages import TO_COORDINATOR, End
from shoal.errors import BadFrame, UsageError
from shoal.launch.processes import hold_interrupts
from shoal.launch.remote.channel import AgentChannel, AgentLeft, FactsTold, Go, HostOrder, Inquiry, Reached, Unable
from shoal.launch.remote.host_facts import HostFacts, advice, differences
from shoal.launch.remote.remote_shell import AbstractRemoteShell
from shoal.wire.listener import Listener
from shoal.wire.messages import Message

_ANSWER_WITHIN = 60.0  # seconds
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


class Agents:
    """One for each of these hosts. Not for several threads."""

    def __init__(self, shell: AbstractRemoteShell, hosts: Sequence[str], words: list[str]) -> None:
        """`words`: the command that is an agent there."""
        self._shell = shell
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._agents: dict[str, Agent] = {}
        try:
            for host in hosts:
                self._start(host, shell.command(host, words))
        except BaseException:
            self.close(None)
            raise

    def fileno(self) -> int:
        return self._selector.fileno()  # that of epoll

    def inquire(self, inquiry: Inquiry, here: HostFacts) -> dict[str, HostFacts]:
        """What each host has. UsageError names those that can't take part, or where something differs from here."""
        self._tell_all(dict.fromkeys(self._agents, inquiry))
        told = self._answers(FactsTold, lambda: None)
        facts = {host: answer.facts for host, answer in told.items() if isinstance(answer, FactsTold)}
        wrong = {host: phrases for host in facts if (phrases := differences(facts[host], host, here))}
        if wrong:
            each = "; ".join(phrase for phrases in wrong.values() for phrase in phrases)
            raise UsageError(f"the hosts are not alike: {each}. {advice(tuple(p for w in wrong.values() for p in w))}.")
        return facts

    def order(self, orders: Mapping[str, HostOrder], probe: Listener) -> None:
        """Give each its part. UsageError names hosts that can't reach `probe`, where the coordinator will listen."""
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

    def hear(self) -> list[tuple[str, Message | AgentLost]]:
        """What was said since, and by which host; does not wait. Of each at most one `AgentLost`, the last of it."""
        news: list[tuple[str, Message | AgentLost]] = []
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
                        message = AgentLost(agent.host, reason, tuple(sorted(agent.members)))
                        if not reason:
                            continue
                    case Unable(why):
                        message = AgentLost(agent.host, why, tuple(sorted(agent.members)))
                news.append((agent.host, message))
        return news

    def close(self, end: End | None, heed: Callable[[], object] = lambda: None) -> None:
        """The run is over: they end whoever is left. `heed` is called when one has said something."""
        if self._is_closed:
            return
        self._is_closed = True
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
            agent.process.kill()
            agent.process.wait()
            for stream in (agent.process.stdout, agent.process.stdin):
                if stream is not None:
                    stream.close()
        self._selector.close()

    def _start(self, host: str, command: list[str]) -> None:
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
        self._agents[host] = agent
        self._selector.register(agent.channel, selectors.EVENT_READ, agent)
        agent.listener = threading.Thread(target=_listen, args=(agent,), name=f"shoal-errors-of-{host}", daemon=True)
        agent.listener.start()

    def _tell_all(self, messages: Mapping[str, Message]) -> None:
        for host, message in messages.items():
            self._agents[host].channel.send(message)

    def _answers(self, kind: type[Message], meanwhile: Callable[[], None]) -> dict[str, Message]:
        """One from each. UsageError names those from whom another came, or none."""
        answers: dict[str, Message] = {}
        wrong: dict[str, str] = {}
        until = time.monotonic() + _ANSWER_WITHIN
        while (missing := self._agents.keys() - answers.keys() - wrong.keys()) and time.monotonic() < until:
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
        wrong |= {host: f"it did not answer within {_ANSWER_WITHIN:.0f} s." for host in missing if host not in answers}
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(_LAST_WORDS)
            if agent.listener is not None:
                agent.listener.join(_LAST_WORDS)
            said = "\n".join(agent.said)
            why = f"{error}. Does a start-up file of its shell print something?" if isinstance(error, BadFrame) else ""
            why = why or self._shell.explain(agent.host, agent.process.poll() or 0, said)
            return [AgentLost(agent.host, why, tuple(sorted(agent.members)))]

    def _await_end(self, until: float, heed: Callable[[], object]) -> None:
        while time.monotonic() < until and any(agent.process.poll() is None for agent in self._agents.values()):
            self._selector.select(0.05)
            heed()
        heed()


def _listen(agent: Agent) -> None:
    """In a thread: what ssh says, and Python, before an agent is there to say it in order."""
    assert agent.process.stderr is not None
    with agent.process.stderr as stream:
        for line in stream:
            agent.said.append(line.decode(errors="replace").rstrip())


def agent_words(python: str) -> list[str]:
    """The command that is an agent. -P: what lies in the current folder must not hide installed packages."""
    return [python, "-P", "-m", "shoal", "agent"]
