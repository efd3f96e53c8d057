"""The supervisor asks launchers and coordinations for nothing but their verbs: here both are played."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from shoal.cluster.launcher_pipe import Interrupt, Reaped, Spawned
from shoal.cluster.messages import End
from shoal.launch.plan import ProcessPlan
from shoal.launch.supervision.coordination import AbstractCoordination, CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.decisions import Supervision
from shoal.launch.supervision.farewell import ENDING
from shoal.launch.supervision.heard_signals import HeardSignals
from shoal.launch.supervision.launcher import AbstractLauncher, MemberEvent
from shoal.launch.supervision.supervisor import KeptFolder, Supervisor
from shoal.wire.messages import Message


class _Wakeup:
    """Something that can be waited for."""

    def __init__(self) -> None:
        self._fd = os.eventfd(1, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class PlayedLauncher(AbstractLauncher):
    """A host whose members live until they are told otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive: list[str] = []
        self.released: list[str] = []
        self.signals: list[signal.Signals] = []
        self._wakeup = _Wakeup()
        self._news: list[MemberEvent] = []

    def start(self, id: str, plan: ProcessPlan) -> None:
        assert plan.host == self.name
        self.alive.append(id)
        self._news.append(Spawned(id, 7))

    def release(self, id: str) -> None:
        self.released.append(id)

    def end(self, id: str, code: int) -> None:
        self.alive.remove(id)
        self._news.append(Reaped(id, code))

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def hear(self) -> list[MemberEvent]:
        news, self._news = self._news, []
        return news

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        for id in [*self.alive]:
            self.end(id, -number)

    def close(self) -> None:
        self._wakeup.close()


class PlayedCoordination(AbstractCoordination):
    """Follows the test's scene: what is heard is answered with what the scene says."""

    def __init__(self, scene: Callable[[Message], list[CoordinatorOrder]]) -> None:
        self.told: list[Message] = []
        self._scene = scene
        self._wakeup = _Wakeup()
        self._orders: list[CoordinatorOrder] = []
        self._given = 100

    def fileno(self) -> int:
        return self._wakeup.fileno()

    def hear(self) -> list[CoordinatorOrder]:
        orders, self._orders = self._orders, []
        return orders

    def tell(self, message: Message) -> None:
        self.told.append(message)
        self._orders += self._scene(message)

    def ask(self, plan: ProcessPlan) -> None:
        self._given += 1
        self._orders.append(PlaceGiven(f"worker-{self._given}", plan))

    def close(self) -> None:
        self._wakeup.close()


Play = Callable[
    [Callable[[dict[str, PlayedLauncher], Message], list[CoordinatorOrder]]], tuple[End, PlayedCoordination]
]


@pytest.fixture
def hosts() -> dict[str, PlayedLauncher]:
    return {name: PlayedLauncher(name) for name in ("here", "there")}


@pytest.fixture
def play(tmp_path: Path, hosts: dict[str, PlayedLauncher]) -> Play:
    """A run of one worker on each of two hosts."""

    def play(
        scene: Callable[[dict[str, PlayedLauncher], Message], list[CoordinatorOrder]],
    ) -> tuple[End, PlayedCoordination]:
        plans = [ProcessPlan(f"worker-{number}", (), {}, host) for number, host in enumerate(hosts)]
        with (
            closing(HeardSignals()) as signals,
            closing(KeptFolder(tmp_path)) as folder,
            closing(PlayedCoordination(lambda message: scene(hosts, message))) as coordination,
            closing(hosts["here"]),
            closing(hosts["there"]),
        ):
            supervision = Supervision(plans, 3, ENDING)
            return Supervisor(supervision, coordination, hosts, folder, signals, 0.01).run(), coordination

    return play


def test_members_are_started_on_the_hosts_of_their_plan_and_replaced_there(
    play: Play, hosts: dict[str, PlayedLauncher]
) -> None:
    def scene(hosts: dict[str, PlayedLauncher], message: Message) -> list[CoordinatorOrder]:
        if isinstance(message, Spawned):
            assert message.member not in (*hosts["here"].released, *hosts["there"].released), "it may be refused"
        match message:
            case Spawned("worker-1"):
                hosts["there"].end("worker-1", -9)
            case Spawned("worker-101"):
                assert (hosts["here"].alive, hosts["there"].alive) == (["worker-0"], ["worker-101"])
                hosts["here"].end("worker-0", 0)
                hosts["there"].end("worker-101", 0)
                return [End(True, 0, "done")]
        return []

    end, coordination = play(scene)
    assert end == End(True, 0, "done")
    assert coordination.told == [
        Spawned("worker-0", 7),
        Spawned("worker-1", 7),
        Reaped("worker-1", -9),
        Spawned("worker-101", 7),
        Reaped("worker-0", 0),
        Reaped("worker-101", 0),
    ]
    assert (hosts["here"].released, hosts["there"].released) == (["worker-0"], ["worker-1", "worker-101"])


def test_an_interrupt_reaches_the_members_of_all_hosts(play: Play, hosts: dict[str, PlayedLauncher]) -> None:
    def scene(hosts: dict[str, PlayedLauncher], message: Message) -> list[CoordinatorOrder]:
        match message:
            case Spawned("worker-1"):
                os.kill(os.getpid(), signal.SIGINT)
            case Interrupt(why, code):
                return [End(False, code, why)]
        return []

    before = signal.getsignal(signal.SIGINT)
    end, _ = play(scene)
    assert (end.ok, end.code, end.reason) == (False, 130, "it was interrupted (SIGINT)")
    assert [host.signals for host in hosts.values()] == [[signal.SIGINT], [signal.SIGINT]]
    assert signal.getsignal(signal.SIGINT) is before
