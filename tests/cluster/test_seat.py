"""A real coordinator in a thread, real seats, real sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from shoal.clock import Deadline, SystemClock
from shoal.cluster import meeting
from shoal.cluster.coordinator import Coordinator
from shoal.cluster.evidence import look_at
from shoal.cluster.leash import Interrupt, Leash, Reaped, Released, Spawned
from shoal.cluster.member import Seat
from shoal.cluster.messages import POST_LIMIT, End
from shoal.config import Deadlines
from shoal.errors import PeerClosed, PeerTimeout, Refused, RunEnded, UsageError
from shoal.wire.keys import RunKey

from .scene import IDENTITY, config, member

DEADLINES = Deadlines(silence=1.0, stall=10.0, connect=5.0, start=10.0)


class Run:
    """A coordinator, and the launcher's end of its leash."""

    def __init__(self, folder: Path, workers: int) -> None:
        to_coordinator, from_launcher = os.pipe()
        to_launcher, from_coordinator = os.pipe()
        self._fds = [to_coordinator, from_coordinator, to_launcher]
        reader, self._let_go = to_coordinator, from_launcher
        self.key = RunKey.new()
        self.leash = Leash(to_launcher, from_launcher)
        self.folder = folder / "run"
        self.folder.mkdir()
        settings = msgspec.structs.replace(config(workers), deadlines=DEADLINES)
        self.coordinator = Coordinator(settings, self.key, self.folder, Leash(reader, from_coordinator), SystemClock())
        self.address = meeting.find(self.folder, Deadline.after(1.0))
        self._thread = threading.Thread(target=self.coordinator.run)
        self._thread.start()
        self.seats: list[Seat] = []

    def join(self, number: int, identity=IDENTITY) -> Seat:
        seat = Seat.join(self.address, self.key, member(number), identity, DEADLINES)
        self.seats.append(seat)
        return seat

    def join_all(self, workers: int) -> list[Seat]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.join, range(workers)))

    def end(self) -> End:
        """What the launcher is told."""
        (end,) = self.leash.receive()
        assert isinstance(end, End)
        return end

    def close(self) -> None:
        for seat in self.seats:
            seat.close()
        os.close(self._let_go)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.coordinator.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def start(tmp_path_factory) -> Iterator:
    with contextlib.ExitStack() as stack:

        def start(workers: int) -> Run:
            run = Run(tmp_path_factory.mktemp("s"), workers)
            stack.callback(run.close)
            return run

        yield start


def test_everyone_gets_the_same_first_view_and_the_same_good_end(start):
    run = start(3)
    seats = run.join_all(3)
    assert {seat.view for seat in seats} == {seats[0].view}
    for seat in seats:
        seat.done()
    for seat in seats:
        seat.wait_end()
    assert run.end().ok


def test_a_post_is_heard_by_all_the_sender_too(start):
    run = start(2)
    one, two = run.join_all(2)
    one.post("seed", b"7")
    assert [seat.wait_post("seed", Deadline.after(5.0)) for seat in (one, two)] == [b"7", b"7"]


def test_a_post_that_never_comes_and_one_that_is_too_long(start):
    (seat,) = start(1).join_all(1)
    with pytest.raises(PeerTimeout, match=r"nobody posted 'seed' within 0\.\d s"):
        seat.wait_post("seed", Deadline.after(0.05))
    with pytest.raises(UsageError, match="holds 65536 bytes at most"):
        seat.post("seed", b"x" * (POST_LIMIT + 1))


def test_a_failure_wakes_every_other_member_with_its_reason(start):
    run = start(2)
    one, two = run.join_all(2)
    one.say(4, "fit")
    one.fail(ValueError("boom"), "Traceback…")
    one.close()
    assert "worker-0 raised ValueError: boom at step 4 (fit)" in run.end().reason
    with pytest.raises(RunEnded, match="worker-0 raised ValueError: boom"):
        two.wait_end()
    with pytest.raises(RunEnded):
        two.wakeup.check()
    with pytest.raises(RunEnded):
        two.wait_post("seed", Deadline.after(5.0))


def test_an_error_that_speaks_of_a_peer_blames_the_peer_through_any_wrapping(start):
    run = start(2)
    one, two = run.join_all(2)
    try:
        try:
            raise PeerClosed("worker-1", "worker-1 closed its connection")
        except PeerClosed as error:
            raise RuntimeError("training failed") from error
    except RuntimeError as error:
        one.fail(error, "")
    end = run.end()
    assert end.culprits == ("worker-1",)
    two.close()


def test_a_member_that_does_not_match_is_refused_in_words(start):
    run = start(2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run.join, 0)
        while first.running() and not run.coordinator._membership._reference:
            time.sleep(0.001)
        with pytest.raises(Refused, match="threads is 8 on worker-1 and 1 on worker-0"):
            run.join(1, msgspec.structs.replace(IDENTITY, threads=8))
        with pytest.raises(RunEnded, match="can't join"):
            first.result()


def test_a_coordinator_that_is_gone_ends_the_run_for_its_members(start):
    run = start(1)
    (seat,) = run.join_all(1)
    run.coordinator._links[1].close()  # as the system would if it were killed
    run.coordinator._links.clear()
    with pytest.raises(RunEnded, match="the coordinator is gone"):
        seat.wait_end()


def test_an_interrupt_reaches_every_member(start):
    run = start(1)
    (seat,) = run.join_all(1)
    run.leash.send(Interrupt("it was interrupted", 130))
    with pytest.raises(RunEnded, match="interrupted"):
        seat.wait_end()
    assert run.end().code == 130


def test_what_the_launcher_saw_explains_a_lost_connection(start):
    run = start(2)
    one, _ = run.join_all(2)
    run.leash.send(Spawned("worker-0", 2**22 + 1))
    one.close()
    run.leash.send(Reaped("worker-0", -signal.SIGKILL))
    assert "was killed by SIGKILL" in run.end().reason
    run.leash.send(Released())


def test_beats_carry_samples_per_second(start):
    run = start(1)
    (seat,) = run.join_all(1)
    deadline = Deadline.after(10.0)
    while not run.coordinator._membership.status(0.0).members[-1].samples_per_second:
        assert not deadline.passed()
        seat.say(1, "fit", samples=10)
        time.sleep(0.005)


def test_a_forked_child_does_not_keep_its_parents_connection(start):
    run = start(1)
    (seat,) = run.join_all(1)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"closed" if seat._connection.fileno() < 0 else b"open")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"closed"
    os.close(reader)
    os.close(writer)


def test_the_system_tells_a_stopped_process_from_a_working_one():
    assert look_at(2**22 + 1) is None
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    try:
        deadline = Deadline.after(10.0)
        while (seen := look_at(pid)) is not None and not (seen.state == "R" and seen.cpu > 0):
            assert not deadline.passed()
        os.kill(pid, signal.SIGSTOP)
        while (seen := look_at(pid)) is not None and seen.state != "T":
            assert not deadline.passed()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
