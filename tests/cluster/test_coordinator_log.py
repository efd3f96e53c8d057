"""The coordinator's log: what a change costs, what is read back, and what a full disk does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.clock import Deadline
from shoal.cluster import coordinator_log
from shoal.cluster.call_results import NAME as RESULTS
from shoal.cluster.call_results import CallResults
from shoal.cluster.coordinator_log import AGAIN, NAME, CoordinatorLog, LogPlan, Write, stale_state
from shoal.cluster.coordinator_service import ServiceLog
from shoal.cluster.events import Exited, KeepResult, Said, Tick
from shoal.cluster.log_entries import MULTIPLE, SMALLEST, entries, frame, is_too_long
from shoal.cluster.membership import Membership
from shoal.cluster.membership_record import LogChange, recall
from shoal.cluster.messages import NOT_KEPT, Finished, Post
from shoal.errors import RunEnded

from .scene import COORDINATOR, Scene, config
from .served import Run


class Disk:
    """Counts what is written, and may be full."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written = 0
        self.is_full = False
        self._real = os.pwrite
        patch.setattr(coordinator_log.os, "pwrite", self._write)

    def _write(self, file: int, content: Any, start: int) -> int:
        if self.is_full:
            self._real(file, bytes(content)[:5], start)  # some of it may still fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written += len(content)
        return self._real(file, content, start)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All logs and results that a test makes let go of their files at its end."""
    made: list[CoordinatorLog | CallResults] = []
    for kind in (CoordinatorLog, CallResults):
        real = kind.__init__

        def init(self: Any, folder: Path, real: Any = real) -> None:
            real(self, folder)
            made.append(self)

        monkeypatch.setattr(kind, "__init__", init)
    yield
    for one in made:
        one.close()


def written(disk: Disk, log: CoordinatorLog, results: CallResults, scene: Scene, calls: range) -> int:
    """Bytes that are written while these calls end."""
    before = disk.written
    for call in calls:
        said = Said(1, Finished(call, b"%06d" % call + 500 * b"."))
        for decision in scene.membership.handle(said, scene.now):
            if isinstance(decision, KeepResult):
                results.keep(decision.call, decision.result)
        log.keep(scene.membership, scene.now)
    return disk.written - before


def test_what_a_call_costs_does_not_grow_with_the_calls_that_are_over(tmp_path, disk):
    log, results, scene = CoordinatorLog(tmp_path), CallResults(tmp_path), Scene(2, least=1)
    log.keep(scene.membership, 0.0)
    first = written(disk, log, results, scene, range(100, 200))
    written(disk, log, results, scene, range(200, 10_000))
    assert written(disk, log, results, scene, range(10_000, 10_100)) <= first + 1000
    assert first < 100 * 600, "each result is written once"
    assert scene.membership.changes() is None, "a call that is over changes nothing but the results"


def test_nor_does_what_a_post_costs_grow_with_their_number(tmp_path, disk):
    log, scene = CoordinatorLog(tmp_path), Scene(2, least=1)
    costs = []
    for number in range(20_000):
        scene.say(0, Post(f"fact #{number:06d}", b"x"))
        before = disk.written
        log.keep(scene.membership, scene.now)
        costs.append(disk.written - before)
    assert sum(costs[-1000:]) <= 2 * sum(costs[1000:2000])
    assert sum(costs) < 20_000 * 2 * min(costs), "with all that was written anew"


def test_a_log_is_written_anew_when_its_changes_are_a_multiple_of_its_base():
    assert not is_too_long(0, SMALLEST)
    assert is_too_long(0, SMALLEST + 1)
    assert not is_too_long(SMALLEST, MULTIPLE * SMALLEST)
    assert is_too_long(SMALLEST, MULTIPLE * SMALLEST + 1)


# What is read back --------------------------------------------------------------------------------------


def a_history(scene: Scene) -> list[Any]:
    """Changes of every kind."""
    return [
        lambda: scene.say(0, Post("seed", b"7")),
        lambda: scene.come_late(3, call=2),
        lambda: scene.say(1, Post("seed", b"8")),
        lambda: scene.happen(Exited("worker-2", -9)),
        lambda: scene.happen(Tick(), after=2.0),
        lambda: scene.say(0, Post("size", b"3")),
    ]


def test_whatever_is_torn_off_the_end_the_state_is_the_one_before_the_entry_that_was_torn(tmp_path):
    scene, log = Scene(3, least=1), CoordinatorLog(tmp_path)
    path = tmp_path / NAME
    log.keep(scene.membership, scene.now)
    known = {path.stat().st_size: scene.membership.record()}
    for happen in a_history(scene):
        happen()
        log.keep(scene.membership, scene.now)
        known[path.stat().st_size] = scene.membership.record()
    assert len(known) > 5, "every change was appended"
    whole = path.read_bytes()
    for size in range(min(known), len(whole) + 1):
        recalled = recall(list(entries(whole[:size])))
        assert recalled is not None
        assert recalled.membership == known[max(end for end in known if end <= size)]
        if size in known:
            assert recall(list(entries(whole[:size] + 40 * b"\0"))) == recalled, "nor do zeros count"
    for size in range(min(known)):
        assert recall(list(entries(whole[:size]))) is None


def test_one_that_takes_over_goes_on_from_the_log_and_writes_its_own(tmp_path):
    scene, log = Scene(3, least=1), CoordinatorLog(tmp_path)
    for happen in a_history(scene):
        happen()
        log.keep(scene.membership, scene.now)
    with (tmp_path / NAME).open("ab") as file:
        file.write(frame(b"not whole")[:-3])
    again = CoordinatorLog(tmp_path)
    recalled = again.recall()
    assert recalled is not None
    other = Membership.restored(recalled.membership, config(3, least=1), COORDINATOR, scene.now)
    again.keep(other, scene.now)
    last = CoordinatorLog(tmp_path).recall()
    assert last is not None
    assert last.membership == other.record()


@pytest.mark.parametrize("content", [b"", b"\xc1", msgspec.msgpack.encode({"membership": 7}), b"\x80"])
def test_what_is_none_of_ours_is_not_believed(content):
    assert recall([content]) is None
    scene = Scene(2, least=1)
    base = msgspec.msgpack.encode(scene.membership.whole())
    change = msgspec.msgpack.encode(LogChange(posts=(Post("late", b""),)))
    recalled = recall([base, msgspec.msgpack.encode({"posts": 7}), change])
    assert recalled is not None
    assert recalled.membership == scene.membership.record()


def test_a_services_changes_come_back_in_order_after_its_record():
    scene = Scene(2, least=1)
    whole = scene.membership.whole()
    assert whole is not None
    written = [
        msgspec.structs.replace(whole, service=b"all"),
        LogChange(service=(b"1", b"2")),
        LogChange(service=(b"3",)),
    ]
    recalled = recall([msgspec.msgpack.encode(entry) for entry in written])
    assert recalled is not None
    assert recalled.service == ServiceLog(b"all", (b"1", b"2", b"3"))


# A full disk --------------------------------------------------------------------------------------------


def test_what_could_not_be_written_is_made_up_for_when_there_is_room(tmp_path, disk):
    scene, log = Scene(3, least=1), CoordinatorLog(tmp_path)
    log.keep(scene.membership, 0.0)
    before = scene.membership.record()
    disk.is_full = True
    scene.say(0, Post("seed", b"7"))
    log.keep(scene.membership, 1.0)
    assert log.trouble is not None
    assert log.trouble.errno == errno.ENOSPC
    assert CoordinatorLog(tmp_path).recall() is None, "what was there is older than what members were told"
    assert CoordinatorLog(tmp_path).is_stale
    disk.is_full = False
    scene.say(0, Post("size", b"3"))
    log.keep(scene.membership, 1.0 + AGAIN)
    assert log.trouble is None
    assert _recalled(tmp_path) == scene.membership.record() != before
    assert not CoordinatorLog(tmp_path).is_stale
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_log_whose_first_entry_finds_no_room_is_stale_too(tmp_path, disk):
    scene, log = Scene(3, least=1), CoordinatorLog(tmp_path)
    assert not log.is_stale
    disk.is_full = True
    log.keep(scene.membership, 0.0)
    assert CoordinatorLog(tmp_path).is_stale


def test_a_coordinator_that_takes_over_from_one_that_found_no_room_says_so_and_ends_the_run(tmp_path, disk):
    folder = tmp_path / "run"
    folder.mkdir()
    scene, log = Scene(2, least=1), CoordinatorLog(folder)
    log.keep(scene.membership, 0.0)
    disk.is_full = True
    scene.say(0, Post("seed", b"7"))
    log.keep(scene.membership, 1.0)
    disk.is_full = False
    run = Run(tmp_path, 2, least=1)
    try:
        end = run.end()
        assert not end.ok
        assert end.reason == stale_state(folder)
        with pytest.raises(RunEnded, match="nobody knows where the run stands"):
            run.join(0)
    finally:
        run.close()


def test_a_log_is_not_believed_that_speaks_of_results_for_which_there_was_no_room(tmp_path, disk):
    run = Run(tmp_path, 1, least=1)
    try:
        link = run.join(0)
        disk.is_full = True
        link.finished(0, b"result")
        link.post("told", b"")
        assert link.wait_post(("told",), Deadline.after(10.0)) is not None
        assert CoordinatorLog(run.folder).is_stale
        link.done()
        assert run.end().ok
    finally:
        run.close()


def test_a_full_disk_is_not_tried_at_every_change(tmp_path, disk):
    scene, plan = Scene(2, least=1), LogPlan()
    first = plan.next(scene.membership, 0.0)
    assert isinstance(first, Write)
    plan.failed(0.0)
    scene.say(0, Post("seed", b"7"))
    assert plan.next(scene.membership, AGAIN / 2) is None
    later = plan.next(scene.membership, AGAIN)
    assert later is not None
    assert later.anew


def test_a_full_disk_does_not_end_the_run_and_is_said_once(tmp_path, disk):
    run = Run(tmp_path, 2, least=1)
    try:
        links = run.join_all(2)
        disk.is_full = True
        for number in range(20):
            links[0].post(f"fact {number}", b"x")
            assert links[1].wait_post((f"fact {number}",), Deadline.after(10.0)) is not None
        late = run.come_late(2)
        for link in (late, *links):
            link.done()
        assert run.end().ok
        assert [text for text in run.told if "can't be written" in text] == [
            f"the run's state can't be written to {run.folder}: No space left on device. The run goes on, but would "
            "not survive the loss of its coordinator until there is room again."
        ]
    finally:
        run.close()


def _recalled(folder: Path) -> Any:
    recalled = CoordinatorLog(folder).recall()
    assert recalled is not None
    return recalled.membership


# Results ------------------------------------------------------------------------------------------------


def test_results_are_read_when_they_are_needed_also_by_one_that_takes_over(tmp_path):
    results = CallResults(tmp_path)
    for call in range(50):
        results.keep(call, b"result of %d" % call)
    results.keep(7, b"another")
    for kept in (results, CallResults(tmp_path)):
        assert kept.calls() == tuple(range(50))
        assert [kept.read(call) for call in (0, 7, 49)] == [b"result of 0", b"result of 7", b"result of 49"]
        assert kept.read(50) == NOT_KEPT


def test_a_result_that_was_torn_was_never_kept_and_the_next_one_is(tmp_path):
    results = CallResults(tmp_path)
    results.keep(0, b"first")
    whole = (tmp_path / RESULTS).stat().st_size
    results.keep(1, 100 * b"second")
    entry = (tmp_path / RESULTS).read_bytes()
    for size in range(whole, len(entry)):
        (tmp_path / RESULTS).write_bytes(entry[:size])
        with closing(CallResults(tmp_path)) as again:
            assert again.calls() == (0,)
            again.keep(2, b"third")
        with closing(CallResults(tmp_path)) as kept:
            assert [kept.read(call) for call in (0, 1, 2)] == [b"first", NOT_KEPT, b"third"]


def test_results_that_find_the_disk_full_are_read_all_the_same_and_written_later(tmp_path, disk):
    results = CallResults(tmp_path)
    results.keep(0, b"first")
    disk.is_full = True
    results.keep(1, b"second")
    results.keep(2, b"third")
    assert results.trouble is not None
    assert [results.read(call) for call in range(3)] == [b"first", b"second", b"third"]
    assert CallResults(tmp_path).calls() == (0,)
    disk.is_full = False
    results.catch_up()
    assert results.trouble is None
    assert [CallResults(tmp_path).read(call) for call in range(3)] == [b"first", b"second", b"third"]


def test_results_survive_the_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    results = CallResults(folder)
    results.keep(0, b"first")
    (folder / RESULTS).unlink()
    folder.rmdir()
    results.keep(1, b"second")
    assert [results.read(call) for call in range(2)] == [b"first", b"second"]
    folder.mkdir()
    results.begin_anew()
    results.keep(2, b"third")
    assert [CallResults(folder).read(call) for call in range(3)] == [b"first", b"second", b"third"]
