"""A real coordinator in a thread, real links to the coordinator, real sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from shoal.clock import Deadline
from shoal.cluster import coordinator_address
from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.evidence import look_at, this_machine
from shoal.cluster.launcher_pipe import Dying, Interrupt, LauncherPipe, MemberTold, Reaped, Released, Spawned
from shoal.cluster.member_record import SentRecord
from shoal.cluster.messages import FROM_COORDINATOR, POST_LIMIT, Answer, Candidate, DrainRequest, Join
from shoal.cluster.succession.electorate import RecordPosition
from shoal.cluster.succession.succession_messages import Follow, HostSeat
from shoal.cluster.view import View
from shoal.errors import PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, ViewChanged
from shoal.observe import story
from shoal.observe.phases import Phase
from shoal.observe.record_files import from_frame, read, to_frame
from shoal.observe.spans import KeptSpan, Span, SpanBlock
from shoal.observe.story import StoryEvent, StoryKind
from shoal.session.user_lines import UserLines
from shoal.wire.connection import connect
from shoal.wire.held_folder import is_alive

from .scene import IDENTITY, member
from .served import DEADLINES, NOBODY, Run


@pytest.fixture
def start(tmp_path_factory) -> Iterator:
    with contextlib.ExitStack() as stack:

        def start(workers: int, least: int | None = None, **more) -> Run:
            run = Run(tmp_path_factory.mktemp("s"), workers, least, **more)
            stack.callback(run.close)
            return run

        yield start


def test_everyone_gets_the_same_first_view_and_the_same_good_end(start):
    run = start(3)
    coordinator_links = run.join_all(3)
    assert {coordinator_link.view for coordinator_link in coordinator_links} == {coordinator_links[0].view}
    for coordinator_link in coordinator_links:
        coordinator_link.done()
    for coordinator_link in coordinator_links:
        coordinator_link.wait_end()
    assert run.end().ok


def test_one_of_another_host_that_is_waited_for_tells_its_stack_itself(tmp_path_factory):
    """The coordinator started neither of them: both are on other hosts."""
    run = Run(tmp_path_factory.mktemp("s"), 2, deadlines=msgspec.structs.replace(DEADLINES, remark=0.2))
    try:
        one, two = sorted(run.join_all(2), key=lambda link: link.member.id)
        two.recorder.record(Phase.CALLBACKS, step=8)
        one.recorder.record(Phase.EXCHANGING, step=9, exchanging=True)
        told: list[str] = []
        while not any("worker-1 is here, the last call first:" in text for text in told):
            told += [message.text for message in run.launcher_pipe.receive() if isinstance(message, MemberTold)]
        assert "for worker-1, which is at step 8 (running callbacks)" in told[0]
        assert "in test_one_of_another_host_that_is_waited_for_tells_its_stack_itself" in told[-1]
    finally:
        run.close()


def test_a_post_is_heard_by_all_the_sender_too(start):
    run = start(2)
    one, two = run.join_all(2)
    one.post("seed", b"7")
    for coordinator_link in (one, two):
        assert coordinator_link.wait_post(("seed",), Deadline.after(5.0)) == ("seed", b"7")


@pytest.mark.parametrize("machine", ["another machine", this_machine()])
def test_a_member_learns_how_far_the_coordinators_clock_is_ahead(start, machine):
    """Here it is the same clock, whatever the member believes; it may be off by half of a round trip."""
    run, offset = start(1), ClockOffset(machine)
    assert offset.ahead(time.monotonic()) is None
    begun = time.monotonic()
    run.join(0, clock_offset=offset)
    deadline = Deadline.after(10.0)
    while (ahead := offset.ahead(time.monotonic())) is None:
        assert not deadline.passed()
        time.sleep(0.01)
    assert abs(ahead) <= (time.monotonic() - begun if machine != this_machine() else 0.0)


def test_what_a_member_elsewhere_has_recorded_is_written_where_the_logs_are(start, tmp_path):
    run = start(1, logs=tmp_path)
    link = run.join(0)
    computed = KeptSpan.of(Phase.COMPUTING, 7, 1.0, 2.0, "piece 3")
    assert link.record(b"nobody understands this")
    deadline = Deadline.after(10.0)
    while not link.record(to_frame(SpanBlock(100.0, 0, (computed,)))):
        assert not deadline.passed()
    while not read(tmp_path):
        assert not deadline.passed()
        time.sleep(0.01)
    assert read(tmp_path) == {"worker-0": [Span("worker-0", Phase.COMPUTING, 7, 101.0, 1.0, "piece 3")]}


def test_what_a_chief_elsewhere_tells_is_in_the_story_by_the_clock_of_the_coordinators_host(start, tmp_path):
    run = start(1, logs=tmp_path)
    link, begun = run.join(0), time.time()
    link.happened(StoryKind.CHECKPOINT, "step-000000200 is written", 200)
    deadline = Deadline.after(10.0)
    while not (told := [event for event in story.read(tmp_path) if event.kind is StoryKind.CHECKPOINT]):
        assert not deadline.passed()
        time.sleep(0.01)
    assert told == [StoryEvent(told[0].at, StoryKind.CHECKPOINT, "step-000000200 is written", "worker-0", 200)]
    assert begun <= told[0].at <= time.time()


def test_a_worker_writes_into_the_story_where_the_logs_are_and_sends_what_happened_from_elsewhere(tmp_path):
    sent = []
    for kept in (story.Story(tmp_path), None):
        UserLines(kept, "worker-0", lambda *told: sent.append(told)).happened(StoryKind.CALL, "fit begins", 3)
    (written,) = story.read(tmp_path)
    assert (written.kind, written.text, written.step) == (StoryKind.CALL, "fit begins", 3)
    assert sent == [(StoryKind.CALL, "fit begins", 3)]


def test_a_record_that_is_not_sent_in_time_is_dropped_and_counted():
    sent, is_free = [], [True, False, False, True]

    def send(frame: bytes) -> bool:
        sent.append(from_frame(frame))
        return is_free.pop(0)

    record = SentRecord(send)
    span = KeptSpan.of(Phase.COMPUTING, 7, 1.0, 2.0)
    for count in (1, 2, 3, 4):
        record.write(SpanBlock(0.0, 0, (span,) * count))
    assert [block.lost for block in sent] == [0, 0, 2, 5]


def test_a_reader_may_hold_a_lock_of_its_own_when_it_calls_the_coordinator_link_and_take_it_when_it_is_called(start):
    """As the store's client does: it writes while it holds its lock, just when the run ends badly."""
    run = start(2)
    one, two = run.join_all(2)
    lock, called = threading.Lock(), threading.Event()

    class Reader:
        def read(self, content: bytes) -> None: ...

        def take(self, view: View) -> None: ...

        def over(self, why: BaseException) -> None:
            called.set()
            with lock:
                pass

    two.read_with(Reader())
    with lock:
        one.fail(ValueError("no"), "")
        assert called.wait(5)
        writer = threading.Thread(target=two.write, args=(b"pause",), daemon=True)
        writer.start()
        writer.join(5)
        assert not writer.is_alive(), "the link holds its lock while it calls its reader, who waits for the writer's"


def test_no_lock_is_held_while_a_reader_is_called_so_another_may_take_its_place(start):
    run = start(1)
    (link,) = run.join_all(1)
    told: list[str] = []

    class Reader:
        def __init__(self, name: str) -> None:
            self.name = name

        def read(self, content: bytes) -> None: ...

        def take(self, view: View) -> None:
            told.append(self.name)
            if self.name == "first":  # as one would that is closed by another thread, for which this one waits
                closer = threading.Thread(target=link.read_with, args=(Reader("second"),), daemon=True)
                closer.start()
                closer.join(5)
                assert not closer.is_alive(), "the link holds a lock while it calls its reader"

        def over(self, why: BaseException) -> None: ...

    link.read_with(Reader("first"))
    assert told == ["first", "second"], "in order, one after the other"


def test_a_coordinator_link_that_has_no_descriptor_for_the_next_view_takes_it_once_there_is_one(
    start, monkeypatch, capfd
):
    run = start(2, least=1)
    one, two = run.join_all(2)
    before = one.stand()[1]
    make, scarce = os.eventfd, threading.Event()

    def eventfd(*args: int) -> int:
        if scarce.is_set():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(*args)

    monkeypatch.setattr(os, "eventfd", eventfd)
    scarce.set()
    run.launcher_pipe.send(Reaped("worker-1", -9))
    time.sleep(0.2)
    assert one.view.number == 1
    scarce.clear()
    assert one.wait_view(1, Deadline.after(5.0), "no view").number == 2
    with pytest.raises(ViewChanged):
        before.check()
    assert capfd.readouterr().err.count("worker-0 can't hear the coordinator") == 1
    two.close()
    one.done()
    assert run.end().ok


def test_a_post_that_never_comes_and_one_that_is_too_long(start):
    (coordinator_link,) = start(1).join_all(1)
    with pytest.raises(PeerTimeout, match=r"nobody posted seed, size within 0\.\d s"):
        coordinator_link.wait_post(("seed", "size"), Deadline.after(0.05))
    with pytest.raises(UsageError, match="holds 65536 bytes at most"):
        coordinator_link.post("seed", b"x" * (POST_LIMIT + 1))


def test_a_failure_wakes_every_other_member_with_its_reason(start):
    run = start(2)
    one, two = run.join_all(2)
    one.recorder.record(Phase.TRAINING, step=4)
    one.fail(ValueError("boom"), "Traceback…")
    one.close()
    assert "worker-0 raised ValueError: boom at step 4 (training)" in run.end().reason
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
    (coordinator_link,) = run.join_all(1)
    run.coordinator._links[1]._sock.shutdown(socket.SHUT_RDWR)  # as the system would if it were killed
    with pytest.raises(RunEnded, match="the coordinator is gone"):
        coordinator_link.wait_end()


def test_an_interrupt_reaches_every_member(start):
    run = start(1)
    (coordinator_link,) = run.join_all(1)
    run.launcher_pipe.send(Interrupt("it was interrupted", 130))
    with pytest.raises(RunEnded, match="interrupted"):
        coordinator_link.wait_end()
    assert run.end().code == 130


def test_what_the_launcher_saw_explains_a_lost_connection(start):
    run = start(2)
    one, _ = run.join_all(2)
    run.launcher_pipe.send(Spawned("worker-0", NOBODY))
    one.close()
    run.launcher_pipe.send(Reaped("worker-0", -signal.SIGKILL))
    assert "was killed by SIGKILL" in run.end().reason
    run.launcher_pipe.send(Released())


def test_beats_carry_samples_per_second(start):
    run = start(1)
    (coordinator_link,) = run.join_all(1)
    deadline = Deadline.after(10.0)
    while not run.coordinator._membership.status(0.0).members[-1].samples_per_second:
        assert not deadline.passed()
        coordinator_link.recorder.count(10)
        time.sleep(0.005)


def ids(coordinator_link: CoordinatorLink) -> list[str]:
    return [one.id for one in coordinator_link.view.workers]


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
    (coordinator_link,) = run.join_all(1)
    with pytest.raises(PeerTimeout, match=r"the next view did not come within 0\.\d s"):
        coordinator_link.wait_view(1, Deadline.after(0.05), "the next view did not come")
    run.launcher_pipe.send(Interrupt("it was interrupted", 130))
    with pytest.raises(RunEnded, match="interrupted"):
        coordinator_link.wait_view(1, Deadline.after(5.0), "the next view did not come")


def test_the_next_in_line_is_told_that_it_is_the_chief(start):
    run = start(3, least=1)
    one, two, _ = run.join_all(3)
    assert run.chiefs == ["worker-0"]
    one.close()
    two.wait_view(1, Deadline.after(5.0), "no view")
    assert run.chiefs == ["worker-0", "worker-1"]


def test_who_waits_for_a_post_stops_when_there_is_another_view(start):
    run = start(3, least=1)
    one, two, three = run.join_all(3)
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(s.wait_post, ("saved",), Deadline.after(10.0), 1) for s in (two, three)]
        one.close()
        assert [wait.result() for wait in waits] == [None, None]
        again = pool.submit(three.wait_post, ("saved", "saved as well"), Deadline.after(10.0), 2)
        two.post("saved as well", b"here")
        assert again.result() == ("saved as well", b"here")


def test_a_post_that_is_there_counts_even_if_its_chief_is_gone(start):
    run = start(2, least=1)
    one, two = run.join_all(2)
    one.post("saved", b"")
    two.wait_post(("saved",), Deadline.after(5.0))
    one.close()
    two.wait_view(1, Deadline.after(5.0), "no view")
    assert two.wait_post(("saved",), Deadline.after(5.0), while_view=1) == ("saved", b"")


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
    two.recorder.record(Phase.TRAINING, step=4)
    two.fail(ValueError("boom"), "Traceback…")
    two.close()
    one.wait_view(1, Deadline.after(5.0), "no view")
    one.done()
    assert one.wait_end()
    assert run.end().ok
    assert run.told == ["worker-1 raised ValueError: boom at step 4 (training); going on with 1 worker"]


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
    (coordinator_link,) = run.join_all(1)
    late = run.come_late(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late.wait_result_or_view, 0, 1)
        coordinator_link.finished(0, b"history")
        assert waiting.result() == b"history"
        waiting = pool.submit(late.wait_result_or_view, 1, 1)
        coordinator_link.done()
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
    one.complain(1, ("worker-1",), "no route", late=False)
    assert one.wait_view(1, Deadline.after(5.0), "no view") == two.wait_view(1, Deadline.after(5.0), "no view")
    assert ids(one) == ["worker-0", "worker-1"]


def test_a_forked_child_does_not_keep_its_parents_connection(start):
    run = start(1)
    (coordinator_link,) = run.join_all(1)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"closed" if coordinator_link._connection.fileno() < 0 else b"open")
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


def test_a_coordinator_does_without_its_folder_and_is_found_in_it_again(start):
    run = start(3, least=1)
    one, two, three = run.join_all(3)
    shutil.rmtree(run.folder)
    three.close()
    for coordinator_link in (one, two):
        assert coordinator_link.wait_view(1, Deadline.after(10.0), "the next view").number == 2, "it goes on meanwhile"
    run.folder.mkdir()
    assert coordinator_address.find(run.folder, Deadline.after(10.0)) == run.address
    late = run.come_late(3)
    assert late.view.number == 2
    assert (run.folder / "record").exists()
    assert is_alive(run.folder)


def test_a_silent_worker_of_another_machine_is_not_judged_by_what_runs_here(tmp_path_factory):
    """Both hosts are called alike, and here a busy process has the number that the silent one has there."""
    deadlines = msgspec.structs.replace(DEADLINES, silence=0.3, stall=60.0)
    busy = os.fork()
    if busy == 0:
        while True:
            pass
    run = Run(tmp_path_factory.mktemp("s"), 1, deadlines=deadlines)
    try:
        remote = msgspec.structs.replace(member(0), pid=busy, host=platform.node(), machine="another")
        connection = connect(run.address, run.key, FROM_COORDINATOR, Deadline.after(5.0))
        connection.send(Join(remote, IDENTITY))
        assert "was silent for" in (end := run.end()).reason
        assert "its process can't be seen from here" in end.reason
        connection.close()
    finally:
        run.close()
        os.kill(busy, signal.SIGKILL)
        os.waitpid(busy, 0)


def test_a_machine_is_known_by_more_than_its_name(monkeypatch):
    assert this_machine() == this_machine()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in this_machine()
    assert os.readlink("/proc/self/ns/pid") in this_machine(), "in another container, the same numbers mean others"
    monkeypatch.setattr("shoal.cluster.evidence._BOOT_ID", Path("/nowhere"))
    assert platform.node() in this_machine(), "better the name than nothing"


def test_what_the_dead_said_is_heard_before_their_death(start):
    """Else the last one to fail would only be gone, and the run's end would not name what all of them raised."""
    run = start(2, least=1)
    coordinator_links = run.join_all(2)
    held, go_on = threading.Event(), threading.Event()
    select = run.coordinator._selector.select

    def the_launcher_first(timeout):
        held.set()
        assert go_on.wait(10)
        return sorted(select(timeout), key=lambda ready: not isinstance(ready[0].fileobj, LauncherPipe))

    run.coordinator._selector.select = the_launcher_first
    assert held.wait(10)
    for number, coordinator_link in enumerate(coordinator_links):
        coordinator_link.fail(ValueError("bad pixel"), "")
        run.launcher_pipe.send(Dying(f"worker-{number}"))
    go_on.set()
    assert set(run.end().culprits) == {"worker-0", "worker-1"}


def test_what_one_said_before_it_hung_up_is_heard_also_if_a_send_finds_out(start):
    run = start(2, least=1)
    coordinator_links = run.join_all(2)
    held, go_on = threading.Event(), threading.Event()
    select = run.coordinator._selector.select

    def one_at_a_time(timeout):
        held.set()
        assert go_on.wait(10)
        return select(timeout)[:1]  # the other's words wait, and what comes of the first is sent to the other

    run.coordinator._selector.select = one_at_a_time
    assert held.wait(10)
    for coordinator_link in coordinator_links:
        coordinator_link.fail(ValueError("bad pixel"), "")
        coordinator_link.close()
    go_on.set()
    assert set(run.end().culprits) == {"worker-0", "worker-1"}


def test_one_that_waits_outside_and_is_drained_leaves_at_once(start):
    run = start(1, least=1)
    (coordinator_link,) = run.join_all(1)
    late = run.come_late(1)
    soon = Deadline.after(5.0)
    with contextlib.closing(connect(run.address, run.key, FROM_COORDINATOR, soon)) as asking:
        asking.send(DrainRequest("worker-1"), deadline=soon)
        assert asking.receive(soon) == Answer(True, "worker-1 leaves after its step")
    with pytest.raises(RunEnded, match="it has left the run"):
        late.wait_result_or_view(0, 1)
    coordinator_link.done()
    assert run.end().ok


def test_a_host_that_follows_a_run_without_hosts_is_hung_up_on_and_the_run_goes_on(start):
    run = start(1)
    soon = Deadline.after(5.0)
    with contextlib.closing(connect(run.address, run.key, FROM_COORDINATOR, soon)) as stray:
        stray.send(Follow(1, "b", HostSeat("tcp:127.0.0.1:1", "here"), RecordPosition()), deadline=soon)
        with pytest.raises(PeerClosed):
            stray.receive(soon)
    (coordinator_link,) = run.join_all(1)
    coordinator_link.done()
    assert run.end().ok


def test_a_coordinator_without_a_descriptor_lets_in_whoever_waits_once_there_is_one(start, monkeypatch, capfd):
    run = start(1)
    listener, scarce = run.coordinator._listener, threading.Event()
    true = listener.poll_accept
    refused = []

    def poll_accept(codec):
        if not scarce.is_set():
            refused.append(codec)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return true(codec)

    monkeypatch.setattr(listener, "poll_accept", poll_accept)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(run.join, 0)
        time.sleep(0.5)
        assert 0 < len(refused) < 10, "it does not turn in circles"
        scarce.set()
        joining.result(10).done()
    assert run.end().ok
    assert capfd.readouterr().err.count("the coordinator can let nobody in") == 1
