"""The end of a mesh's processes, without any: only their pipes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import MeshProcessLost
from shoal.hook.mesh import process_group
from shoal.hook.mesh.process_group import ProcessGroup


class Follower:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def kill(self) -> None:
        self.ended.set()

    def wait(self) -> int:
        self.ended.wait()
        return -9


def group_of(follower: Follower, pipe: int, lost: Callable[[MeshProcessLost], None]) -> ProcessGroup:
    group: Any = object.__new__(ProcessGroup)
    group._me, group._lost, group._closing = "worker-0", lost, False
    group._followers, group._pipes = [follower], [pipe]
    group._watchers = [threading.Thread(target=group._watch, args=(follower, 1, 2), daemon=True)]
    group._watchers[0].start()
    made: ProcessGroup = group
    return made


def test_a_follower_that_dies_while_it_is_told_something_is_named_by_its_watcher_first() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    follower, told = Follower(), []
    group = group_of(follower, writing, told.append)
    threading.Timer(0.05, follower.kill).start()
    with pytest.raises(MeshProcessLost, match="mesh process 1 of 2 takes no commands any more"):
        group._send([b"command"])
    assert [str(error) for error in told] == ["worker-0: its mesh process 1 of 2 was killed by SIGKILL"]
    group.close()


def test_a_follower_that_was_stopped_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    gate = threading.Event()

    def send(self: ProcessGroup, parts: object) -> None:
        gate.wait(20)
        raise OSError("the pipe is closed by now")

    monkeypatch.setattr(process_group, "_CLOSED_WITHIN", 0.1, raising=False)
    monkeypatch.setattr(ProcessGroup, "_send", send)
    follower = Follower()
    group = group_of(follower, writing, lambda error: None)
    began = time.monotonic()
    group.close()
    assert time.monotonic() - began < 5.0
    assert follower.ended.is_set()
    gate.set()
    os.close(reading)
