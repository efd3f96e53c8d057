"""Between a launcher and its agents: what is said arrives whole, and the end of the input is the end of the run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from shoal.cluster.launcher_pipe import Reaped, Spawned
from shoal.cluster.messages import End, JoinerPlace
from shoal.config import RunConfig
from shoal.errors import BadFrame
from shoal.launch.plan import ProcessPlan
from shoal.launch.remote import agent_coordination, terminal_output
from shoal.launch.remote.agent_coordination import AgentCoordination
from shoal.launch.remote.channel import AgentChannel, Go, LogText
from shoal.launch.remote.host_keeper import HostKeeper
from shoal.launch.remote.terminal_output import TerminalOutput
from shoal.launch.supervision.coordination import PlaceGiven
from shoal.launch.supervision.remote_coordination import AbstractRunElsewhere, RemoteCoordination

PLACE = ProcessPlan("worker-1", (), {})


class _Nowhere(AbstractRunElsewhere):
    def ask(self, role: str) -> JoinerPlace:
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


class _Keeper:
    """Of a host that hears a coordinator, or does not."""

    def __init__(self, unheard: float = 0.0, is_launchers: bool = True) -> None:
        self.launcher_gone = False
        self.has_heard, self.is_asking = True, False
        self._unheard, self._is_launchers = unheard, is_launchers
        self._news = os.eventfd(0)

    def fileno(self) -> int:
        return self._news

    def take_orders(self) -> list[object]:
        return []

    def is_launchers(self) -> bool:
        return self._is_launchers

    def unheard_for(self) -> float:
        return self._unheard

    def where(self) -> str:
        return "tls:10.0.0.2:4000"

    def close(self) -> None:
        os.close(self._news)


class _Elsewhere(AbstractRunElsewhere):
    """Whose coordinator gives places itself."""

    def ask(self, role: str) -> JoinerPlace:
        return JoinerPlace("worker-7", RunConfig("r", 2, 1, "jax", "train.py"))

    def prepare(self, place: JoinerPlace) -> None:
        pass


def _of(keeper: _Keeper, pipes: Pipes, moved: list[str]) -> AgentCoordination:
    inner = RemoteCoordination(_Elsewhere(), [PLACE])
    return AgentCoordination(inner, pipes.agent, False, cast("HostKeeper", keeper), None, moved.append)


def _hear_until(coordination: AgentCoordination, kind: type) -> list[object]:
    heard: list[object] = []
    until = time.monotonic() + 20.0
    while not any(isinstance(it, kind) for it in heard) and time.monotonic() < until:
        heard += coordination.hear()
        time.sleep(0.01)
    return heard


def test_when_the_coordinator_says_that_the_launcher_is_gone_all_ends_at_once(pipes: Pipes) -> None:
    keeper = _Keeper()
    with closing(_of(keeper, pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        assert coordination.hear() == [], "it may be the host that is gone"
        keeper.launcher_gone = True
        assert coordination.hear() == [End(False, 1, "the launcher is gone")]


def test_an_agent_that_its_launcher_alone_has_lost_ends(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is still heard, and says nothing of the launcher: it will start another agent here."""
    monkeypatch.setattr(agent_coordination, "_WORD_WITHIN", 0.0)
    with closing(_of(_Keeper(unheard=0.1), pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        assert any(isinstance(it, End) for it in _hear_until(coordination, End))


def test_when_the_launchers_host_is_gone_the_coordinator_that_was_elected_gives_places(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_coordination, "_WORD_WITHIN", 0.0)
    moved: list[str] = []
    with closing(_of(_Keeper(unheard=5.0), pipes, moved)) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        assert coordination.hear() == []
        coordination.hear()
        coordination.tell(Reaped("worker-1", -9))
        coordination.ask(PLACE)
        heard = _hear_until(coordination, PlaceGiven)
        assert PlaceGiven("worker-7", PLACE) in heard
        assert not any(isinstance(it, End) for it in heard)
        assert moved == ["tls:10.0.0.2:4000"]


def test_an_agent_does_not_heed_the_end_of_a_launcher_whose_host_was_cut_off(pipes: Pipes) -> None:
    with closing(_of(_Keeper(is_launchers=False), pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        assert coordination.hear() == []
        pipes.launcher.send(End(False, 1, "the others have gone on"))
        assert coordination.hear() == []


def test_without_any_coordinator_an_agent_gives_up(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_coordination, "_WORD_WITHIN", 0.0)
    with closing(_of(_Keeper(unheard=21.0), pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        (end,) = [it for it in _hear_until(coordination, End) if isinstance(it, End)]
        assert "too few hosts are left" in end.reason


def test_an_agent_on_the_losing_side_of_a_cut_ends_though_nothing_closes(pipes: Pipes) -> None:
    with closing(_of(_Keeper(unheard=21.0), pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        (end,) = coordination.hear()
        assert isinstance(end, End)
        assert "too few hosts are left" in end.reason


def test_an_agent_waits_for_a_coordinator_that_hosts_are_still_coming_to(pipes: Pipes) -> None:
    keeper = _Keeper(unheard=21.0)
    keeper.has_heard = False
    with closing(_of(keeper, pipes, [])) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        assert coordination.hear() == []


def test_a_last_checkpoint_is_not_cut_off_because_the_coordinator_has_gone(pipes: Pipes) -> None:
    """The launcher is dead: its coordinator has said so, and leaves before the last worker has written."""
    keeper = _Keeper(unheard=0.1)
    inner = RemoteCoordination(_Elsewhere(), [PLACE])
    with closing(AgentCoordination(inner, pipes.agent, True, cast("HostKeeper", keeper))) as coordination:
        coordination.tell(Spawned("worker-1", 7))
        pipes.kill_launcher()
        keeper.launcher_gone = True
        assert coordination.hear() == []
        keeper._unheard = 30.0
        assert coordination.hear() == [], "65 s are allowed"


def test_what_is_said_about_workers_waits_for_nobody_and_comes_when_there_is_room(pipes: Pipes) -> None:
    """The launcher is stopped, and the pipe is full of what workers have printed."""
    for _ in range(8):
        pipes.agent.send(LogText("worker-1", b"x" * 30_000))
    pipes.agent.send(Reaped("worker-1", -9))
    assert not pipes.agent.drain(0.01)
    heard = []
    while not heard or not isinstance(heard[-1], Reaped):
        heard.append(pipes.launcher.next(5.0))
        pipes.agent.flush()
    assert len(heard) == 9


def test_an_agent_does_not_wait_for_ever_for_its_part(pipes: Pipes) -> None:
    with pytest.raises(TimeoutError):
        pipes.agent.next(0.01)


@pytest.fixture
def terminal() -> Iterator[tuple[TerminalOutput, int]]:
    """And its other end, which nobody reads yet."""
    reader, writer = os.pipe()
    output = TerminalOutput({1: writer})
    yield output, reader
    output.close()
    os.close(writer)


def test_a_terminal_that_takes_nothing_holds_nobody_up(
    terminal: tuple[TerminalOutput, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_output, "LIMIT", 300_000)
    output, reader = terminal
    for _ in range(5):
        output.write(1, b"x" * 100_000)
    assert not output.drain(0.01)
    with os.fdopen(reader, "rb") as shown:
        assert shown.read(300_000) == b"x" * 300_000
        output.drain(5.0)
        output.write(1, b"more\n")
        assert shown.readline() == b"shoal: 200,000 bytes of output are not shown: the terminal took nothing\n"
        assert shown.readline() == b"more\n"
        assert output.drain(5.0)


def test_a_reader_that_has_gone_ends_nothing(terminal: tuple[TerminalOutput, int]) -> None:
    output, reader = terminal
    os.close(reader)  # | head
    for _ in range(3):
        output.write(1, b"more\n")
    assert output.drain(5.0)
