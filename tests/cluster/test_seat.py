"""A real coordinator in a thread, real seats, real sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from shoal.clock import Deadline
from shoal.cluster.evidence import look_at
from shoal.cluster.leash import Dying, Interrupt, Leash, Reaped, Released, Spawned
from shoal.cluster.member import Seat
from shoal.cluster.messages import FROM_COORDINATOR, POST_LIMIT, Answer, Candidate, DrainRequest
from shoal.errors import PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, ViewChanged
from shoal.wire.connection import connect

from .scene import IDENTITY
from .served import NOBODY, Run


@pytest.fixture
def start(tmp_path_factory) -> Iterator:
    with contextlib.ExitStack() as stack:

        def start(workers: int, least: int | None = None) -> Run:
            run = Run(tmp_path_factory.mktemp("s"), workers, least)
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
    for seat in (one, two):
        assert seat.wait_post(("seed",), Deadline.after(5.0)) == ("seed", b"7")


def test_a_post_that_never_comes_and_one_that_is_too_long(start):
    (seat,) = start(1).join_all(1)
    with pytest.raises(PeerTimeout, match=r"nobody posted seed, size within 0\.\d s"):
        seat.wait_post(("seed", "size"), Deadline.after(0.05))
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
        two.wait_post(("seed",), Deadline.after(5.0))


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
    run.coordinator._links[1]._sock.shutdown(socket.SHUT_RDWR)  # as the system would if it were killed
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
    run.leash.send(Spawned("worker-0", NOBODY))
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


def ids(seat: Seat) -> list[str]:
    return [one.id for one in seat.view.workers]


def test_a_loss_ends_all_waits_in_the_old_view_and_none_in_the_new_one(start):
    run = start(3, least=1)
    one, two, three = run.join_all(3)
    view, wakeup = one.stand()
    three.close()
    newer = one.wait_view(view.number, Deadline.after(5.0), "no view")
    assert (newer.number, ids(one)) == (2, ["worker-0", "worker-1"])
    with pytest.raises(ViewChanged) as changed:
        wakeup.check()
    assert changed.value.number == 2
    assert one.stand()[0] == newer
    one.stand()[1].check()
    assert two.wait_view(1, Deadline.after(5.0), "no view") == newer


def test_a_view_that_does_not_come_is_a_timeout_and_the_end_of_the_run_is_its_end(start):
    run = start(1, least=1)
    (seat,) = run.join_all(1)
    with pytest.raises(PeerTimeout, match=r"the next view did not come within 0\.\d s"):
        seat.wait_view(1, Deadline.after(0.05), "the next view did not come")
    run.leash.send(Interrupt("it was interrupted", 130))
    with pytest.raises(RunEnded, match="interrupted"):
        seat.wait_view(1, Deadline.after(5.0), "the next view did not come")


def test_the_next_in_line_is_told_that_it_is_the_chief(start):
    run = start(3, least=1)
    one, two, _ = run.join_all(3)
    assert run.chiefs == ["worker-0"]
    one.close()
    two.wait_view(1, Deadline.after(5.0), "no view")
    assert run.chiefs == ["worker-0", "worker-1"]


def test_who_waits_for_a_post_of_the_chief_stops_when_there_is_another_chief(start):
    run = start(3, least=1)
    one, two, three = run.join_all(3)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(s.wait_post, ("saved",), Deadline.after(10.0), "worker-0") for s in (two, three)]
        one.close()
        assert [wait.result() for wait in waits] == [None, None]
        again = pool.submit(three.wait_post, ("saved", "saved as well"), Deadline.after(10.0), "worker-1")
        two.post("saved as well", b"here")
        assert again.result() == ("saved as well", b"here")


def test_a_post_that_is_there_counts_even_if_its_chief_is_gone(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    one.post("saved", b"")
    two.wait_post(("saved",), Deadline.after(5.0))
    one.close()
    two.wait_view(1, Deadline.after(5.0), "no view")
    assert two.wait_post(("saved",), Deadline.after(5.0), while_chief="worker-0") == ("saved", b"")


def test_who_is_done_hears_of_a_new_view_and_then_of_the_good_end(start):
    run = start(3, least=1)
    one, two, three = run.join_all(3)
    one.done()
    three.close()
    assert not one.wait_end(after=1)
    two.done()
    assert one.wait_end(after=2)
    assert two.wait_end()
    assert run.end().ok


def test_what_the_launcher_reads_says_who_was_lost(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    two.say(4, "fit")
    two.fail(ValueError("boom"), "Traceback…")
    two.close()
    one.wait_view(1, Deadline.after(5.0), "no view")
    one.done()
    assert one.wait_end()
    assert run.end().ok
    assert run.told == ["worker-1 raised ValueError: boom at step 4 (fit); going on with 1 worker"]


def test_who_comes_late_hears_what_was_said_and_is_let_in(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    one.post("seed", b"7")
    one.finished(0, b"history")
    one.wait_post(("seed",), Deadline.after(5.0))
    two.close()
    one.wait_view(1, Deadline.after(5.0), "no view")
    late = run.come_late(2)
    assert late.wait_post(("seed",), Deadline.after(5.0)) == ("seed", b"7")
    assert late.wait_result_or_view(0, late.view.number) == b"history"
    assert ids(late) == ["worker-0"]
    late.ready(1)
    one.wait_change(2, (), 5.0)
    assert one.candidates == (Candidate("worker-2", 1),)
    one.admit(2, ("worker-2",))
    assert late.wait_result_or_view(1, 2) is None
    assert ids(late) == ["worker-0", "worker-2"]
    late.decline(3, ("worker-2",))
    one.wait_view(3, Deadline.after(5.0), "no view")
    assert ids(one) == ["worker-0"]


def test_who_waits_outside_hears_what_a_call_returned_and_that_the_run_is_over(start):
    run = start(1, least=1)
    (seat,) = run.join_all(1)
    late = run.come_late(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late.wait_result_or_view, 0, 1)
        seat.finished(0, b"history")
        assert waiting.result() == b"history"
        waiting = pool.submit(late.wait_result_or_view, 1, 1)
        seat.done()
        with pytest.raises(RunEnded, match="every worker finished"):
            waiting.result()


def test_one_that_leaves_gives_its_place_up_and_is_no_loss(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    two.leave()
    two.close()
    assert [m.id for m in one.wait_view(1, Deadline.after(5.0), "no view").workers] == ["worker-0"]
    one.done()
    assert run.end().ok
    assert run.told == ["worker-1 has left the run"]


def test_a_complaint_is_answered_with_a_fresh_view(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    one.complain(1, ("worker-1",), "no route")
    assert one.wait_view(1, Deadline.after(5.0), "no view") == two.wait_view(1, Deadline.after(5.0), "no view")
    assert ids(one) == ["worker-0", "worker-1"]


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
    assert look_at(NOBODY) is None
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


def test_what_the_dead_said_is_heard_before_their_death(start):
    """Else the last one to fail would only be gone, and the run's end would not name what all of them raised."""
    run = start(2, least=1)
    seats = run.join_all(2)
    held, go_on = threading.Event(), threading.Event()
    select = run.coordinator._selector.select

    def the_launcher_first(timeout):
        held.set()
        assert go_on.wait(10)
        return sorted(select(timeout), key=lambda ready: not isinstance(ready[0].fileobj, Leash))

    run.coordinator._selector.select = the_launcher_first
    assert held.wait(10)
    for number, seat in enumerate(seats):
        seat.fail(ValueError("bad pixel"), "")
        run.leash.send(Dying(f"worker-{number}"))
    go_on.set()
    assert set(run.end().culprits) == {"worker-0", "worker-1"}


def test_what_one_said_before_it_hung_up_is_heard_also_if_a_send_finds_out(start):
    run = start(2, least=1)
    seats = run.join_all(2)
    held, go_on = threading.Event(), threading.Event()
    select = run.coordinator._selector.select

    def one_at_a_time(timeout):
        held.set()
        assert go_on.wait(10)
        return select(timeout)[:1]  # the other's words wait, and what comes of the first is sent to the other

    run.coordinator._selector.select = one_at_a_time
    assert held.wait(10)
    for seat in seats:
        seat.fail(ValueError("bad pixel"), "")
        seat.close()
    go_on.set()
    assert set(run.end().culprits) == {"worker-0", "worker-1"}


def test_one_that_waits_outside_and_is_drained_leaves_at_once(start):
    run = start(1, least=1)
    (seat,) = run.join_all(1)
    late = run.come_late(1)
    soon = Deadline.after(5.0)
    with contextlib.closing(connect(run.address, run.key, FROM_COORDINATOR, soon)) as asking:
        asking.send(DrainRequest("worker-1"), deadline=soon)
        assert asking.receive(soon) == Answer(True, "worker-1 leaves after its step")
    with pytest.raises(RunEnded, match="it has left the run"):
        late.wait_result_or_view(0, 1)
    seat.done()
    assert run.end().ok
