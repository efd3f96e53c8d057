"""A host's vote and its copy of the record, with a coordinator that is made up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shoal.clock import Deadline
from shoal.cluster import coordinator_address
from shoal.cluster.coordinator_log import NAME
from shoal.cluster.evidence import look_at
from shoal.cluster.messages import TO_COORDINATOR
from shoal.cluster.succession.election import StartCoordinator
from shoal.cluster.succession.electorate import Electorate
from shoal.cluster.succession.succession_messages import Follow, HostSeat, LauncherGone, RecordEntry, StillCoordinating
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.launch.remote import host_keeper
from shoal.launch.remote.host_keeper import HostKeeper, KeeperPart
from shoal.wire.connection import Connection
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener

from .launched import eventually

LOOPBACK = "127.0.0.1"


class Scene:
    """A coordinator of host a, as far as its followers know, and keepers of other hosts."""

    def __init__(self, folder: Path, electorate: Electorate) -> None:
        self.folder, self.electorate = folder, electorate
        self.key = RunKey.new()
        self.listener = Listener(f"tcp:{LOOPBACK}:0", self.key)
        self.links: dict[str, Connection] = {}
        self.seats: dict[str, HostSeat] = {}
        self._stack = ExitStack()

    def keeper(self, me: str, on_split: str | None = None) -> HostKeeper:
        """Of a host that has followed."""
        (self.folder / me).mkdir()
        part = KeeperPart(me, "a", self.electorate, 1, LOOPBACK, self.listener.address, on_split)
        keeper = self._stack.enter_context(closing(HostKeeper(part, self.folder / me, self.key)))
        connection = self.listener.accept(TO_COORDINATOR, Deadline.after(20.0))
        follow = connection.receive(Deadline.after(20.0))
        assert isinstance(follow, Follow)
        self.links[follow.voter], self.seats[follow.voter] = connection, follow.seat
        return keeper

    def write(self, content: bytes) -> None:
        """The first entry of the record."""
        for connection in self.links.values():
            connection.send(RecordEntry(1, 1, self.electorate, content, anew=True), deadline=Deadline.after(5.0))
            connection.send(StillCoordinating(1, self.seats), deadline=Deadline.after(5.0))
            connection.receive(Deadline.after(20.0))  # that it is kept, or a sign of life

    def die(self) -> None:
        self.listener.close()
        for connection in self.links.values():
            connection.close()

    def close(self) -> None:
        self._stack.close()
        self.die()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Scene]:
    """Two hosts of which neither is enough."""
    with closing(Scene(tmp_path, Electorate(("a", "b"), first_decides=False))) as scene:
        yield scene


def test_two_hosts_that_are_left_elect_one_of_them_which_has_the_record(tmp_path: Path) -> None:
    with closing(Scene(tmp_path, Electorate(("a", "b", "c")))) as scene:
        keepers = {id: scene.keeper(id) for id in ("b", "c")}
        scene.write(b"what was decided")
        scene.die()
        orders: list[tuple[str, object]] = []
        eventually(
            lambda: orders.extend((id, it) for id, keeper in keepers.items() for it in keeper.take_orders()) or orders,
            "one is elected",
        )
        ((elected, order),) = orders
        assert isinstance(order, StartCoordinator)
        start = SuccessionStart.load(tmp_path / elected)
        assert start is not None
        assert (start.epoch, start.host, start.is_launchers) == (order.epoch, elected, False)
        assert set(start.seats) == {"b", "c"}
        assert (tmp_path / elected / NAME).read_bytes() == b"what was decided"

        other = "c" if elected == "b" else "b"
        coordinator_address.publish(tmp_path / elected, follows := _listening(scene))
        scene.links["its own host"] = scene.listener.accept(TO_COORDINATOR, Deadline.after(20.0))
        eventually(lambda: keepers[other].where() == follows, "the other host follows")
        assert coordinator_address.find(tmp_path / other, Deadline.after(1.0)) == follows, "and its workers with it"
        assert not keepers[other].is_launchers()


def _listening(scene: Scene) -> str:
    """The coordinator that was started in its place."""
    scene.listener = Listener(f"tcp:{LOOPBACK}:0", scene.key)
    return scene.listener.address


def test_of_two_hosts_the_one_goes_on_for_which_the_users_command_says_so(two: Scene, tmp_path: Path) -> None:
    keeper = two.keeper("b", on_split=f'echo "$SHOAL_HOSTS" > {tmp_path}/asked')
    two.write(b"it")
    two.die()
    orders: list[object] = []
    eventually(lambda: orders.extend(keeper.take_orders()) or orders, "it goes on")
    assert (tmp_path / "asked").read_text() == "a\n"
    start = SuccessionStart.load(tmp_path / "b")
    assert start is not None
    assert start.fenced == ("a",)


def test_of_two_hosts_neither_goes_on_if_the_users_command_does_not_know(two: Scene, tmp_path: Path) -> None:
    keeper = two.keeper("b", on_split=f"echo asked >> {tmp_path}/asked; exit 1")
    two.write(b"it")
    two.die()
    eventually(lambda: (tmp_path / "asked").exists() and (tmp_path / "asked").read_text().count("asked") > 1, "asked")
    assert keeper.take_orders() == []


def test_that_the_launcher_is_gone_is_heard_from_the_coordinator_of_its_host(two: Scene) -> None:
    keeper = two.keeper("b")
    two.write(b"it")
    two.links["b"].send(LauncherGone(1), deadline=Deadline.after(5.0))
    eventually(lambda: keeper.launcher_gone, "it is heard")


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started(
    two: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keeper, "_COMMAND_WITHIN", 0.3)
    keeper = two.keeper("b", on_split=f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    two.write(b"it")
    two.die()
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "it is asked")
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: look_at(pid) is None or look_at(pid).state == "Z", "its child is ended")
    assert keeper.take_orders() == []


def test_a_keeper_that_gets_no_thread_keeps_its_vote(
    two: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keeper = two.keeper("b")
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "shoal-host-asks":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        two.links["b"].close()
        said: list[str] = []
        eventually(
            lambda: said.append(capfd.readouterr().err) or "can't start new thread" in "".join(said), "it says it"
        )
    again = two.listener.accept(TO_COORDINATOR, Deadline.after(20.0))
    assert isinstance(again.receive(Deadline.after(20.0)), Follow)
    two.links["b"] = again
    assert keeper.take_orders() == []
