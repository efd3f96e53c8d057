"""What a process records of itself, and where it can be read."""

from __future__ import annotations

from pathlib import Path

from shoal.observe.phases import Activity, Phase
from shoal.observe.recorder import Moment, Recorder
from shoal.wire.status_page import StatusPage, read


def test_a_moment_says_what_is_done_at_which_step_and_since_when() -> None:
    recorder = Recorder()
    recorder.record(Phase.COMPUTING, "piece 3", step=12)
    first = recorder.now
    assert (first.step, str(first.activity), first.exchanging) == (12, "computing piece 3", False)
    recorder.record(Phase.EXCHANGING)
    recorder.exchange(True)
    second = recorder.now
    assert (second.step, str(second.activity), second.exchanging) == (12, "exchanging gradients", True)
    assert second.since >= first.since


def test_what_is_counted_is_counted_on() -> None:
    recorder = Recorder()
    recorder.count(32, 4)
    recorder.count(32)
    assert (recorder.samples, recorder.pieces) == (64, 4)


def test_whoever_hears_is_told_of_every_moment() -> None:
    heard: list[Moment] = []
    recorder = Recorder(heard.append)
    recorder.record(Phase.READING, step=1)
    recorder.exchange(True)
    assert heard == [heard[0], recorder.now]
    assert [moment.exchanging for moment in heard] == [False, True]


def test_a_status_page_outlives_its_writer(tmp_path: Path) -> None:
    recorder = Recorder(StatusPage(tmp_path / "page").write)
    assert read(tmp_path / "page") is None
    recorder.record(Phase.WAITING, f"for worker-0 at {'x' * 500}\nand more", step=7)
    step, doing = read(tmp_path / "page") or (0, Activity())
    assert (step, doing.phase) == (7, Phase.WAITING)
    assert doing.detail.startswith("for worker-0 at xxx")
    recorder.record(Phase.CALLBACKS)
    assert read(tmp_path / "page") == (7, Activity(Phase.CALLBACKS))


def test_a_page_that_somebody_else_wrote_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"\x07" * 256)
    assert read(tmp_path / "page") is None


def test_the_scripts_own_lines_are_told_from_calls() -> None:
    assert [phase for phase in Phase if phase.is_scripts] == [Phase.STARTING, Phase.SCRIPT]
