"""The launcher's side of agents, with a shell that starts whatever the test wants."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from shoal.config import RunConfig
from shoal.launch.remote.agents import Agent, AgentBack, AgentLost, Agents
from shoal.launch.remote.channel import HostOrder
from shoal.launch.remote.remote_shell import AbstractRemoteShell

from .launched import eventually

ORDER = HostOrder(RunConfig("r", 2, 1, "jax", "train.py"), ("worker-1",), 0, "", "", "127.0.0.1:1")


@dataclass(frozen=True)
class _Shell(AbstractRemoteShell):
    line: str
    program: str = "sh"

    def command(self, host: str, words: list[str]) -> list[str]:
        return ["sh", "-c", self.line]

    def host_name(self, host: str) -> str:
        return host

    def explain(self, host: str, code: int, said: str) -> str:
        return "it is gone"


def test_an_agent_that_babbles_is_ended_since_its_workers_count_as_dead() -> None:
    agents = Agents(_Shell("echo 'Welcome to gpu-7!'; exec sleep 600"), ["gpu-7"], [])
    with ExitStack() as stack:
        stack.callback(agents.close, None)
        process = agents._agents["gpu-7"].process
        agents._agents["gpu-7"].members = {"worker-1"}
        news: list[tuple[str, object]] = []
        eventually(lambda: news.extend(agents.hear()) or news, "it is heard")
        ((host, lost),) = news
        assert isinstance(lost, AgentLost)
        assert (host, lost.members) == ("gpu-7", ("worker-1",))
        assert process.wait(10.0) == -9


def test_a_host_that_is_tried_while_all_is_closed_is_left_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(_Shell("exec sleep 600"), [], [])
    agents._orders = {"b": ORDER}
    begun, go_on = threading.Event(), threading.Event()
    started: list[Agent] = []
    true = Agents._started

    def late(self: Agents, host: str) -> Agent:
        begun.set()
        assert go_on.wait(10.0)
        started.append(true(self, host))
        return started[0]

    monkeypatch.setattr(Agents, "_started", late)
    monkeypatch.setattr(Agents, "_converse", lambda *_: AgentBack("b", ("worker-2",)))
    agents.bring_back("b", ("worker-2",), 1)
    assert begun.wait(10.0)
    agents.close(None)
    go_on.set()
    eventually(lambda: started and started[0].process.poll() is not None, "it is ended")
    eventually(lambda: not any(t.name == "shoal-return-of-b" for t in threading.enumerate()), "the thread ends")
