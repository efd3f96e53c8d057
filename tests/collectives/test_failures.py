"""Peers that leave, stall, lie or come from another view: every wait ends in time and names who it was."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.clock import Deadline
from shoal.cluster.view import View
from shoal.collectives import messenger
from shoal.collectives.group import AbstractGroup, PeerGroup
from shoal.collectives.layout import VectorLayout
from shoal.collectives.messages import CODEC, PeerHello, Reduced, RefusePeer, Welcome
from shoal.config import Deadlines
from shoal.errors import BadFrame, NoSpace, PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, ViewChanged
from shoal.wire import Connection, Wakeup, connect

from .harness import Worker, close_all, evenly, make_workers, on_each

HASTY = Deadlines(stall=0.3, connect=0.3)
each_transport = pytest.mark.parametrize("transport", ["shm", "tcp", "aab"])


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messenger, "GRACE", 0.2)


@contextlib.contextmanager
def workers(count: int, transport: str, folder: Path) -> Iterator[list[Worker]]:
    made = make_workers(count, transport, folder)
    try:
        yield made
    finally:
        close_all(made)


def reduce_once(group: AbstractGroup, what: str = "fit step 7", floats: int = 300_000) -> None:
    exchange = group.open(VectorLayout(floats), 1)
    try:
        exchange.reduce(what, group.size, evenly(group.size, group.size), b"")
    finally:
        exchange.close()


@each_transport
def test_a_worker_that_leaves_in_an_exchange_is_named_by_all(transport: str, tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        group = worker.form()
        try:
            if worker.me == "worker-1":
                group.open(VectorLayout(300_000), 1).close()
            else:
                reduce_once(group)
        finally:
            group.close()

    with workers(3, transport, tmp_path) as made:
        begun = time.monotonic()
        ends = on_each(made, scene)
        took = time.monotonic() - begun
    assert ends[1] is None
    for end in (ends[0], ends[2]):
        assert isinstance(end, PeerClosed)
        assert end.peer == "worker-1"
        assert "fit step 7: worker-1 is gone" in str(end)
    assert took < 10


@each_transport
@pytest.mark.parametrize("verb", ["gather", "broadcast", "gather_rows", "scatter", "open", "reduce"])
def test_a_worker_that_does_not_come_is_named_at_the_deadline(verb: str, transport: str, tmp_path: Path) -> None:
    arrays = [np.zeros(3)]
    verbs: dict[str, Any] = {
        "gather": lambda group: group.gather("a value", b""),
        "broadcast": lambda group: group.broadcast("weights", arrays),
        "gather_rows": lambda group: group.gather_rows("predict", arrays),
        "scatter": lambda group: group.scatter("batch", [arrays] * 3 if group.rank == 0 else None),
        "open": lambda group: group.open(VectorLayout(10), 1),
        "reduce": reduce_once,
    }
    all_ended = threading.Barrier(3)

    def scene(worker: Worker) -> None:
        group = worker.form(Deadlines(stall=0.3))
        try:
            if worker.me != "worker-2":
                verbs[verb](group)
        finally:
            all_ended.wait(20)  # nobody leaves before the others' deadlines
            group.close()

    with workers(3, transport, tmp_path) as made:
        ends = on_each(made, scene)
    for end in ends[:2]:
        assert isinstance(end, PeerTimeout)
        assert end.missing == ("worker-2",)
        assert re.search(r"worker-2 did not come within \d\.\d s \(deadline 0\.3 s\); 2 of 3 came", str(end)), end


@each_transport
def test_what_the_control_plane_knows_comes_before_a_closed_connection(transport: str, tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        group = worker.form()
        try:
            if worker.me == "worker-1":
                return
            telling = threading.Timer(0.05, worker.wakeup.set, [RunEnded("worker-1 raised ValueError at step 7")])
            telling.start()
            try:
                reduce_once(group)
            finally:
                telling.join()
        finally:
            group.close()

    with workers(2, transport, tmp_path) as made:
        ends = on_each(made, scene)
    assert isinstance(ends[0], RunEnded)
    assert "ValueError at step 7" in str(ends[0])


def test_the_end_of_the_run_ends_every_wait_at_once(tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        if worker.me == "worker-1":
            group = worker.form()
            made[0].wakeup.set(RunEnded("over"))
            forming.wait(20)
            group.close()
            return
        group = worker.form()
        try:
            group.gather("a value", b"")
        finally:
            forming.set()
            group.close()

    forming = threading.Event()
    with workers(2, "shm", tmp_path) as made:
        ends = on_each(made, scene)
    assert isinstance(ends[0], RunEnded)


def test_a_worker_that_never_connects_is_named(tmp_path: Path) -> None:
    with workers(3, "shm", tmp_path) as made:
        ends = on_each(made[:2], lambda worker: worker.form(HASTY))
    for end in ends:
        assert isinstance(end, PeerTimeout)
        assert "view 1: worker-2 did not connect to" in str(end)
        assert end.missing == ("worker-2",)


def test_who_comes_from_another_view_is_refused_with_the_reason(tmp_path: Path) -> None:
    with workers(2, "shm", tmp_path) as made:
        old = View(0, made[0].view.members)
        ends = on_each(made, lambda worker: worker.form(HASTY, old if worker.me == "worker-1" else None))
    assert isinstance(ends[0], PeerTimeout)
    assert isinstance(ends[1], Refused)
    assert ends[1].reason == "other view"
    assert "worker-0 refused worker-1: worker-1 is in view 0, worker-0 is in view 1" in str(ends[1])


@each_transport
def test_who_hears_of_a_view_first_asks_again_until_the_other_has_heard_of_it(transport: str, tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        if worker.me == "worker-0":
            hears = threading.Timer(0.05, worker.wakeup.set, [ViewChanged(2)])
            hears.start()
            with pytest.raises(ViewChanged):
                worker.form()
            hears.join()
            worker.wakeup = Wakeup()
        worker.form(view=View(2, worker.view.members)).close()

    with workers(2, transport, tmp_path) as made:
        assert on_each(made, scene) == [None, None]


def test_a_refusal_for_another_reason_is_not_asked_again(tmp_path: Path) -> None:
    with workers(3, "shm", tmp_path) as made:
        without = View(1, made[0].view.members[:2])  # one view, but not the same members

        def scene(worker: Worker) -> None:
            if worker.me == "worker-1":
                return
            worker.form(HASTY, without if worker.me == "worker-0" else None)

        ends = on_each(made, scene)
    assert isinstance(ends[2], Refused)
    assert ends[2].reason == "not awaited"


def test_who_is_not_awaited_is_refused_and_the_others_still_come(tmp_path: Path) -> None:
    def impostor(worker: Worker) -> RefusePeer:
        connection = connect(worker.listener.address, worker.key, CODEC, Deadline.after(10))
        try:
            connection.send(PeerHello(1, "worker-7"))
            answer = connection.receive(Deadline.after(10))
            assert isinstance(answer, RefusePeer)
            return answer
        finally:
            connection.close()

    with workers(2, "shm", tmp_path) as made:
        answers: list[RefusePeer] = []

        def scene(worker: Worker) -> None:
            if worker.me == "worker-1":
                answers.append(impostor(made[0]))
            worker.form().close()

        assert on_each(made, scene) == [None, None]
    assert "worker-0 does not wait for worker-7 in view 1" in answers[0].text


def test_shared_memory_needs_unix_sockets(tmp_path: Path) -> None:
    with workers(2, "tcp", tmp_path) as made:
        made[0].transport = "shm"
        with pytest.raises(UsageError, match="shared memory needs unix sockets"):
            made[0].form()


def test_one_worker_needs_nobody(tmp_path: Path) -> None:
    with workers(1, "shm", tmp_path) as made:
        group = made[0].form()
        assert (group.rank, group.size, group.members) == (0, 1, ("worker-0",))
        group.close()


class Liar:
    """A peer with the key that says what it likes."""

    def __init__(self, worker: Worker) -> None:
        self.connection: Connection = connect(worker.listener.address, worker.key, CODEC, Deadline.after(10))
        self.connection.send(PeerHello(1, "worker-1"))
        assert self.connection.receive(Deadline.after(10)) == Welcome(1, "worker-0")


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Reduced(1, 1), BadFrame, "worker-1 sent Reduced of exchange 1, which was not expected"),
        (PeerHello(1, "worker-1"), BadFrame, "worker-1 sent PeerHello where none was expected"),
        (RefusePeer("busy", "come later"), Refused, "worker-1 refused: come later"),
    ],
    ids=["out of order", "wrong word", "refusal"],
)
def test_a_peer_that_says_the_wrong_thing_is_named(
    message: Any, error: type[Exception], text: str, tmp_path: Path
) -> None:
    said = threading.Event()

    def scene(worker: Worker) -> None:
        if worker.me == "worker-1":
            liar = Liar(made[0])
            liar.connection.send(message)
            said.wait(20)
            liar.connection.close()
            return
        group = worker.form()
        try:
            group.gather("a value", b"")
        finally:
            said.set()
            group.close()

    with workers(2, "shm", tmp_path) as made:
        ends = on_each(made, scene)
    assert isinstance(ends[0], error)
    assert text in str(ends[0])


def test_a_worker_whose_buffers_do_not_fit_is_named(tmp_path: Path) -> None:
    """Its layout is another one, although it said the same when the exchange was opened."""

    def scene(worker: Worker) -> None:
        group = worker.form()
        assert isinstance(group, PeerGroup)
        exchange: Any = group.open(VectorLayout(1000), 1)
        if worker.me == "worker-1":
            exchange._slices = VectorLayout(2000).slices(2, 64)
            exchange._memory = [[memoryview(bytes(8000))]] * 2
        try:
            exchange.reduce("step", 2, (range(1), range(1, 2)), b"")
        finally:
            both_done.wait(20)
            exchange.close()
            group.close()

    both_done = threading.Barrier(2)
    with workers(2, "tcp", tmp_path) as made:
        ends = on_each(made, scene)
    assert isinstance(ends[0], BadFrame)
    assert "Published from worker-1 brings buffers of" in str(ends[0])


def test_no_space_for_the_gradients_is_said_by_all_and_leaves_nothing(tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        group = worker.form()
        try:
            group.open(VectorLayout(1 << 46), 1)
        finally:
            both_done.wait(20)
            group.close()

    both_done = threading.Barrier(2)
    with workers(2, "shm", tmp_path) as made:
        ends = on_each(made, scene)
    for rank, end in enumerate(ends):
        assert isinstance(end, NoSpace)
        assert f"no space in shared memory for worker-{rank}'s gradients" in str(end)


def test_a_worker_that_leaves_while_memory_is_shared_is_named_and_nothing_leaks(tmp_path: Path) -> None:
    def scene(worker: Worker) -> None:
        group = worker.form()
        try:
            if worker.me == "worker-2":
                group.gather("opening an exchange", msgspec.msgpack.encode((300_000, 0, 0, 0, "", 1)))
            else:
                group.open(VectorLayout(300_000), 1)
        finally:
            group.close()

    with workers(3, "shm", tmp_path) as made:
        ends = on_each(made, scene)
    for end in ends[:2]:
        assert isinstance(end, PeerClosed)
        assert "opening shared memory: " in str(end)
