"""From a recorder's ring to the record."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shoal.observe import recorder
from shoal.observe.phases import Phase
from shoal.observe.record_files import RecordFile, dropped, read
from shoal.observe.record_keeper import RecordKeeper
from shoal.observe.recorder import Recorder, Waited, joined
from shoal.observe.spans import MOST_SPANS, SpanBlock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    return now


def keeper(one: Recorder, folder: Path) -> RecordKeeper:
    return RecordKeeper(one, RecordFile(folder, "worker-0").write, lambda: 1000.0)


def test_every_moment_of_a_step_is_in_exactly_one_span(tmp_path: Path, clock: list[float]) -> None:
    one = Recorder()
    for phase, seconds in ((Phase.READING, 1.0), (Phase.COMPUTING, 5.0), (Phase.EXCHANGING, 3.0), (Phase.APPLYING, 1)):
        one.record(phase, step=7)
        clock[0] += seconds
        if phase is Phase.EXCHANGING:
            one.exchange(True)
            one.wait([Waited(clock[0] - 2.0, clock[0])])
            one.exchange(False)
    one.record(Phase.CALLBACKS, step=8)
    keeper(one, tmp_path).drain()
    spans = [span for span in read(tmp_path)["worker-0"] if span.step == 7]
    assert [(span.phase, span.start, span.seconds) for span in spans if not span.inside] == [
        (Phase.READING, 1100.0, 1.0),
        (Phase.COMPUTING, 1101.0, 5.0),
        (Phase.EXCHANGING, 1106.0, 3.0),
        (Phase.APPLYING, 1109.0, 1.0),
    ]
    assert [(span.phase, span.start, span.seconds) for span in spans if span.inside] == [(Phase.WAITING, 1107.0, 2.0)]


def test_waits_that_follow_each_other_at_once_are_one_and_short_ones_are_none() -> None:
    waits = [Waited(1.0, 1.1), Waited(1.10001, 1.2), Waited(1.5, 1.50001), Waited(2.0, 2.5)]
    assert joined(waits) == [Waited(1.0, 1.2), Waited(2.0, 2.5)]
    assert joined([]) == []


def test_a_ring_that_nobody_empties_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    one = Recorder(ring=10)
    for step in range(1, 26):
        one.record(Phase.COMPUTING, step=step)
    keeper(one, tmp_path).drain()
    assert [span.step for span in read(tmp_path)["worker-0"]] == [*range(15, 25), 25]
    assert dropped(tmp_path) == {"worker-0": 15}


def test_an_hour_of_steps_stays_within_the_bounds(tmp_path: Path, clock: list[float]) -> None:
    """14,400 of a quarter of a second each, which fill the file several times."""
    one, limit = Recorder(), 50_000
    keeps = RecordKeeper(one, RecordFile(tmp_path, "worker-0", limit).write, lambda: 0.0)
    seen = []
    for step in range(14_400):
        for phase in (Phase.READING, Phase.COMPUTING, Phase.EXCHANGING, Phase.APPLYING):
            one.record(phase, step=step)
            clock[0] += 0.0625
        if step % 16 == 15:
            keeps.drain()
            seen.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(seen) < 2 * limit + 20_000
    assert max(seen) > limit
    last = read(tmp_path)["worker-0"]
    assert (last[-1].step, dropped(tmp_path)) == (14_399, {"worker-0": 0})


def test_a_thread_takes_what_was_recorded_and_the_end_takes_the_rest(tmp_path: Path) -> None:
    one = Recorder()
    keeps = RecordKeeper(one, RecordFile(tmp_path, "worker-0").write, lambda: 0.0, every=0.01)
    keeps.start()
    one.record(Phase.COMPUTING, step=1)
    limit = time.monotonic() + 10
    while not read(tmp_path).get("worker-0") and time.monotonic() < limit:
        time.sleep(0.005)
    assert read(tmp_path)["worker-0"][0].phase is Phase.STARTING
    one.record(Phase.APPLYING, step=1)
    keeps.close()
    assert [span.phase for span in read(tmp_path)["worker-0"]] == [Phase.STARTING, Phase.COMPUTING, Phase.APPLYING]


def test_what_keeps_waiting_holds_up_neither_the_recording_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.observe.record_keeper._LAST_WORDS", 0.05)
    stuck = threading.Event()
    one = Recorder(ring=10)

    def keep(block: SpanBlock) -> None:
        stuck.wait(10)

    keeps = RecordKeeper(one, keep, lambda: 0.0, every=0.001)
    keeps.start()
    for step in range(2 * MOST_SPANS):
        one.record(Phase.COMPUTING, step=step)
    keeps.close()
    assert one.now.step == 2 * MOST_SPANS - 1
    stuck.set()
    keeps.close()


MEMBER = """
import sys, time
from pathlib import Path
from shoal.observe.phases import Phase
from shoal.observe.record_files import RecordFile
from shoal.observe.record_keeper import RecordKeeper
from shoal.observe.recorder import Recorder

one = Recorder()
RecordKeeper(one, RecordFile(Path(sys.argv[1]), "worker-0").write, lambda: 0.0, every=0.05).start()
one.record(Phase.COMPUTING, step=1)
one.record(Phase.CALLBACKS, "for ever", step=2)
time.sleep(60)
"""


def test_of_a_member_that_is_killed_what_it_did_last_is_known(tmp_path: Path) -> None:
    member = subprocess.Popen([sys.executable, "-c", MEMBER, str(tmp_path)])
    try:
        limit = time.monotonic() + 30
        while not any(span.step == 2 for span in read(tmp_path).get("worker-0", ())):
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        member.kill()
        member.wait()
    *_, before, last = read(tmp_path)["worker-0"]
    assert (before.phase, before.is_open) == (Phase.COMPUTING, False)
    assert (last.phase, last.step, last.detail, last.is_open) == (Phase.CALLBACKS, 2, "for ever", True)
