"""Connections in the making, to servers that can't be reached yet."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from shoal.errors import PeerClosed
from shoal.store import links
from shoal.wire.keys import RunKey

PATIENCE = 20.0


class Made:
    """A connection of which the first sends may fail."""

    def __init__(self, fails: bool) -> None:
        self.is_closed, self._fails = False, fails

    def send(self, message: Any, deadline: Any) -> None:
        if self._fails:
            raise PeerClosed("server-0", "server-0 closed the connection")

    def close(self) -> None:
        self.is_closed = True


def dial(monkeypatch: pytest.MonkeyPatch, *attempts: Made | OSError) -> links._Dial:
    """What becomes of it if each attempt to connect comes to one of these."""
    left, over = list(attempts), threading.Event()

    def connect(*_: Any) -> Made:
        attempt = left.pop(0)
        if isinstance(attempt, OSError):
            raise attempt
        return attempt

    monkeypatch.setattr(links, "connect", connect)
    made = links._Dial("worker-0", "server-0", "unix:x", RunKey.new(), over.set)
    assert over.wait(PATIENCE), "it has given up"
    return made


def test_without_a_free_descriptor_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Made(fails=False)
    assert dial(monkeypatch, OSError(errno.EMFILE, "too many open files"), there).connection is there
    assert not there.is_closed


def test_a_connection_on_which_nothing_can_be_said_is_closed_before_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Made(fails=True), Made(fails=False)
    assert dial(monkeypatch, first, second).connection is second
    assert (first.is_closed, second.is_closed) == (True, False)
