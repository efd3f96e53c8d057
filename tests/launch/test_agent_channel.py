"""Between a launcher and its agents: what is said arrives whole, and the end of the input is the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from shoal.cluster.launcher_pipe import Reaped, Spawned
from shoal.cluster.messages import End, JoinerPlace
from shoal.errors import BadFrame
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote.agent_coordination import AgentCoordination
from shoal.launch.remote.channel import AgentChannel, Go, LogText
from shoal.launch.supervision.remote_coordination import AbstractRunElsewhere, RemoteCoordination

PLACE = ProcessPlan("worker-1", (), {})


class _Nowhere(AbstractRunElsewhere):
    def ask(self) -> JoinerPlace:
        raise AssertionError("nobody asks")

    def prepare(self, place: JoinerPlace) -> None:
        raise AssertionError("nobody comes")


class Pipes:
    """A launcher's end and an agent's."""

    def __init__(self) -> None:
        (at_agent, to_agent), (at_launcher, to_launcher) = os.pipe(), os.pipe()
        self.open = {at_agent, to_agent, at_launcher, to_launcher}
        self.to_agent = to_agent
        self.launcher = AgentChannel(at_launcher, to_agent, at_agent=False)
        self.agent = AgentChannel(at_agent, to_launcher, at_agent=True)

    def kill_launcher(self) -> None:
        self.open.remove(self.to_agent)
        os.close(self.to_agent)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for fd in made.open:
        os.close(fd)


@pytest.fixture
def coordination(pipes: Pipes) -> Iterator[AgentCoordination]:
    with closing(AgentCoordination(RemoteCoordination(_Nowhere(), [PLACE]), pipes.agent, saves=False)) as made:
        made.tell(Spawned("worker-1", 7))
        yield made


def test_the_end_of_the_launcher_is_the_end_of_the_run_for_an_agent(
    pipes: Pipes, coordination: AgentCoordination
) -> None:
    assert coordination.hear() == []
    pipes.kill_launcher()
    assert coordination.hear() == [End(False, 1, "the launcher is gone")]
    assert coordination.hear() == [], "it ends once"


def test_workers_of_a_run_with_checkpoints_get_time_to_write_one(pipes: Pipes) -> None:
    with closing(AgentCoordination(RemoteCoordination(_Nowhere(), [PLACE]), pipes.agent, saves=True)) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        assert coordination.hear() == []
        coordination.tell(Reaped("worker-1", 0))
        assert [type(order) for order in coordination.hear()] == [End], "as soon as they are gone"


def test_an_agent_tells_how_its_workers_end_and_hears_how_the_run_does(
    pipes: Pipes, coordination: AgentCoordination
) -> None:
    coordination.tell(Reaped("worker-1", -9))
    assert pipes.launcher.receive() == [Spawned("worker-1", 7), Reaped("worker-1", -9)]
    pipes.launcher.send(End(True, 0, "every worker finished its script"))
    assert [order.ok for order in coordination.hear() if isinstance(order, End)] == [True]


def test_what_came_together_with_an_expected_message_is_not_lost(pipes: Pipes) -> None:
    pipes.launcher.send(Go())
    pipes.launcher.send(End(True, 0, ""))
    assert pipes.agent.next() == Go()
    assert pipes.agent.has_more
    assert pipes.agent.receive() == [End(True, 0, "")]


def test_bytes_travel_as_they_are_and_babble_is_refused(pipes: Pipes) -> None:
    pipes.agent.send(LogText("worker-1", b"\xff\n\x00"))
    assert pipes.launcher.receive() == [LogText("worker-1", b"\xff\n\x00")]
    os.write(pipes.to_agent, b"Welcome to gpu-7!\n")
    with pytest.raises(BadFrame, match=r"Welcome to gpu-7!"):
        pipes.agent.receive()
