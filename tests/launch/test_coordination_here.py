"""The launcher's part of coordination: a coordinator that dies, is stopped, or has too few hosts to decide anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from shoal.cluster.coordinator_log import NAME
from shoal.cluster.launcher_pipe import Interrupt, LauncherPipe, MemberTold, Spawned
from shoal.cluster.messages import End
from shoal.config import RunConfig
from shoal.launch.logs import Logs
from shoal.launch.remote.agents import Agents
from shoal.launch.remote.agents_coordination import AgentsCoordination, end_without_hosts
from shoal.launch.remote.host_keeper import HostKeeper
from shoal.launch.remote.silence import CoordinatorSilence
from shoal.launch.supervision import local_coordination
from shoal.launch.supervision.coordination import CoordinatorOrder
from shoal.launch.supervision.local_coordination import LocalCoordination
from shoal.wire.messages import Message

CONFIG = RunConfig("r", 2, 1, "jax", "train.py", least=1)
CTRL_C = Interrupt("it was interrupted (SIGINT)", 130)


class _Process:
    """A coordinator that does nothing, until it dies."""

    started: list[_Process]

    def __init__(self, *_: object, **__: object) -> None:
        self.pid = os.getpid()
        to_it, of_launcher = os.pipe()
        to_launcher, of_it = os.pipe()
        self.stdin, self.stdout = os.fdopen(of_launcher, "wb"), os.fdopen(to_launcher, "rb")
        self._ends = [to_it, of_it]
        self.pipe = LauncherPipe(to_it, of_it)
        self.started.append(self)

    def die(self) -> None:
        os.close(self._ends.pop())

    def look(self) -> int:
        return -9

    def wait(self, _: float) -> None:
        pass

    def send(self, _: int) -> None:
        pass

    def kill_group(self) -> None:
        if len(self._ends) == 2:
            self.die()

    def close_pipes(self) -> None:
        pass

    def release(self) -> None:
        self.kill_group()
        os.close(self._ends.pop())
        self.stdin.close()
        self.stdout.close()

    def heard(self) -> list[Message]:
        return self.pipe.receive()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[_Process]:
    _Process.started = []
    monkeypatch.setattr(local_coordination, "Process", _Process)
    return _Process.started


@pytest.fixture
def elected(tmp_path: Path, processes: list[_Process]) -> Iterator[LocalCoordination]:
    """Of a run on several hosts."""
    (tmp_path / "run").mkdir()
    logs = Logs(tmp_path, lambda _: None)
    with closing(LocalCoordination(tmp_path / "run", CONFIG, {}, logs, (), elected=True)) as coordination:
        yield coordination


def test_a_coordinator_that_dies_before_anything_was_decided_is_started_again_here(
    elected: LocalCoordination, processes: list[_Process]
) -> None:
    elected.tell(Spawned("worker-0", 7))
    processes[0].die()
    (told,) = elected.hear()
    assert isinstance(told, MemberTold)
    assert "starting it again" in told.text
    assert processes[1].heard() == [Spawned("worker-0", 7)]


def test_a_coordinator_that_dies_later_is_left_to_the_election(
    elected: LocalCoordination, processes: list[_Process], tmp_path: Path
) -> None:
    (tmp_path / "run" / NAME).write_bytes(b"what was decided")
    processes[0].die()
    (told,) = elected.hear()
    assert isinstance(told, MemberTold)
    assert "the hosts elect another" in told.text
    assert len(processes) == 1


def test_an_interrupt_between_two_coordinators_is_told_to_the_second(
    elected: LocalCoordination, processes: list[_Process], tmp_path: Path
) -> None:
    (tmp_path / "run" / NAME).write_bytes(b"what was decided")
    processes[0].die()
    elected.hear()
    elected.tell(CTRL_C)
    elected.start_again()
    assert processes[1].heard() == [CTRL_C]


def test_a_host_that_is_elected_again_notices_when_its_coordinator_dies(
    elected: LocalCoordination, processes: list[_Process], tmp_path: Path
) -> None:
    (tmp_path / "run" / NAME).write_bytes(b"what was decided")
    elected.stop()
    assert elected.hear() == [], "on purpose"
    elected.start_again()
    processes[1].die()
    assert [type(it) for it in elected.hear()] == [MemberTold]


def test_without_hosts_that_are_enough_an_interrupt_ends_the_run() -> None:
    end = end_without_hosts(unheard=3.1, patience=300.0, may_give_up=True, interrupt=CTRL_C, asked_for=3.1)
    assert end is not None
    assert (end.ok, end.code) == (False, 130)
    assert "no last checkpoint" in end.reason


@pytest.mark.parametrize(("unheard", "asked_for"), [(0.4, 60.0), (60.0, 0.4)])
def test_a_coordinator_that_can_decide_gets_to_answer_an_interrupt(unheard: float, asked_for: float) -> None:
    assert end_without_hosts(unheard, 300.0, True, CTRL_C, asked_for) is None


def test_a_launcher_waits_for_enough_hosts_as_long_as_the_run_has_it_and_no_longer() -> None:
    assert end_without_hosts(19.9, 20.0, True, None, 0.0) is None
    assert end_without_hosts(99.0, 20.0, False, None, 0.0) is None, "hosts may need long to come at first"
    end = end_without_hosts(20.1, 20.0, True, None, 0.0)
    assert end is not None
    assert (end.ok, end.code) == (False, 1)
    assert "too few hosts have answered for 20 s (deadline 20 s)" in end.reason


def test_time_in_which_a_host_was_stopped_itself_is_no_silence_of_the_coordinator() -> None:
    silence = CoordinatorSilence(0.0)
    silence.hear(1.0)
    for tenth in range(10, 40):
        silence.look(tenth / 10)
    assert silence.seconds == pytest.approx(2.9)
    silence.look(60.0)
    assert silence.seconds == pytest.approx(2.9), "it was stopped for a minute"
    silence.look(60.1)
    assert silence.seconds == pytest.approx(3.0)
    silence.hear(60.2)
    assert silence.seconds == 0.0


class _Silent:
    """Agents, a coordinator and a keeper of which nothing comes: the other hosts can't be reached."""

    has_heard, is_asking = True, False

    def __init__(self, unheard: float) -> None:
        self._unheard = unheard
        self._news = os.eventfd(0)

    def fileno(self) -> int:
        return self._news

    def hear(self) -> list[CoordinatorOrder]:
        return []

    def take_orders(self) -> list[object]:
        return []

    def unheard_for(self) -> float:
        return self._unheard

    def close(self) -> None:
        os.close(self._news)


def test_a_launcher_whose_hosts_are_gone_ends_though_its_coordinator_says_nothing(tmp_path: Path) -> None:
    with closing(_Silent(21.0)) as keeper, closing(_Silent(0.0)) as agents, closing(_Silent(0.0)) as inner:
        local = cast("LocalCoordination", inner)
        kept = cast("HostKeeper", keeper)
        coordination = AgentsCoordination(local, cast("Agents", agents), tmp_path, False, kept, 20.0)
        with closing(coordination):
            assert [type(it) for it in coordination.hear()] == [End]
            assert coordination.hear() == [], "once"
