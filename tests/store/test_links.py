"""Connections between the members of a store: who is let in, and who is not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from shoal.clock import Deadline
from shoal.errors import PeerClosed
from shoal.store.links import CODEC, Event, Linked, Links
from shoal.store.shared_blocks import Return
from shoal.store.values.messages import StoreHello
from shoal.wire.connection import Connection, connect
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener


class Scene:
    """A server's links, and whoever connects to it."""

    def __init__(self) -> None:
        self._key = RunKey.new()
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(1))
        self.listener = self._stack.enter_context(closing(Listener("tcp:127.0.0.1:0", self._key)))
        self.links = Links("server-0", self._key, lambda _, __: (), self.listener)
        self._stack.callback(self.close_links)
        self._is_open = True

    def connect(self) -> Connection:
        """One more peer, which has proven the key."""
        dialled = self.dial()
        while not dialled.done():
            self.links.wait(0.01)
        return self._stack.enter_context(closing(dialled.result()))

    def dial(self) -> Future[Connection]:
        """The same, once it is let in."""
        return self._pool.submit(connect, self.listener.address, self._key, CODEC, Deadline.after(10.0))

    def hear(self) -> list[Event]:
        soon = Deadline.after(10.0)
        while not (events := self.links.wait(0.05)) and not soon.passed():
            pass
        return events

    def close_links(self) -> None:
        if self._is_open:
            self._is_open = False
            self.links.close()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with closing(Scene()) as made:
        yield made


def test_who_does_not_say_its_name_first_is_hung_up_on(scene: Scene) -> None:
    stray = scene.connect()
    stray.send(Return(0), deadline=Deadline.after(5.0))
    for _ in range(5):
        scene.links.wait(0.05)
    with pytest.raises(PeerClosed):
        stray.receive(Deadline.after(5.0))


def test_who_has_not_said_its_name_yet_is_hung_up_on_at_the_end(scene: Scene) -> None:
    silent = scene.connect()
    scene.links.wait(0.05)
    scene.close_links()
    with pytest.raises(PeerClosed):
        silent.receive(Deadline.after(5.0))


def test_a_server_without_a_descriptor_lets_in_whoever_waits_once_there_is_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    poll_accept = scene.listener.poll_accept

    def scarce(_: object) -> list[Connection]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(scene.listener, "poll_accept", scarce)
    dialled = scene.dial()
    for _ in range(10):
        assert scene.links.wait(0.05) == []
    monkeypatch.setattr(scene.listener, "poll_accept", poll_accept)
    while not dialled.done():
        scene.links.wait(0.01)
    with closing(dialled.result()) as worker:
        worker.send(StoreHello("worker-0"), deadline=Deadline.after(5.0))
        assert scene.hear() == [Linked("worker-0")]
    assert "server-0 can let nobody in" in capfd.readouterr().err
