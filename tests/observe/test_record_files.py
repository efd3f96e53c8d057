"""What members have done, written down and read again: bounded, whatever is killed, and whoever wrote into the file."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import pytest

from shoal.observe import record_files
from shoal.observe.phases import Phase
from shoal.observe.record_files import OLDER_SPANS, SPANS, RecordFile, dropped, from_frame, read, to_frame
from shoal.observe.record_reader import RecentRecord
from shoal.observe.spans import KeptSpan, Span, SpanBlock

AHEAD = 1_700_000_000.0


def block(*steps: int, going_on: int | None = None, lost: int = 0) -> SpanBlock:
    """A tenth of a second of computing for each step."""
    spans = [KeptSpan.of(Phase.COMPUTING, step, step / 10, step / 10 + 0.1, f"piece {step}") for step in steps]
    now = KeptSpan.of(Phase.READING, going_on, going_on / 10, going_on / 10 + 0.05) if going_on is not None else None
    return SpanBlock(AHEAD, lost, tuple(spans), now)


def steps(folder: Path, member: str = "worker-0") -> list[int]:
    return [span.step for span in read(folder).get(member, ())]


def test_what_was_written_is_read_on_the_shared_clock(tmp_path: Path) -> None:
    RecordFile(tmp_path, "worker-0").write(block(10, 11))
    RecordFile(tmp_path, "server-0").write(block(3))
    found = read(tmp_path)
    assert list(found) == ["worker-0", "server-0"]
    assert found["worker-0"][0] == Span("worker-0", Phase.COMPUTING, 10, AHEAD + 1.0, 0.1, "piece 10")
    assert found["worker-0"][0].end == found["worker-0"][1].start


def test_spans_are_read_in_the_order_in_which_they_began_what_is_inside_last(tmp_path: Path) -> None:
    outer = KeptSpan.of(Phase.EXCHANGING, 1, 0.0, 1.0)
    inner = KeptSpan.of(Phase.WAITING, 1, 0.0, 0.5, inside=True)
    RecordFile(tmp_path, "worker-0").write(SpanBlock(0.0, 0, (inner, outer)))
    assert [(span.phase, span.inside) for span in read(tmp_path)["worker-0"]] == [
        (Phase.EXCHANGING, False),
        (Phase.WAITING, True),
    ]


def test_the_end_of_a_record_is_read_again_and_again_as_if_all_of_it_was(tmp_path: Path) -> None:
    """While frames are replaced, files become older ones, one is deleted and one emptied."""
    file, recent, looked = RecordFile(tmp_path, "worker-0", limit=3000), RecentRecord(tmp_path), 0
    for step in range(0, 400, 4):
        if step == 200:
            (tmp_path / f"worker-0{SPANS}").unlink()
        if step == 260:
            os.truncate(tmp_path / f"worker-0{SPANS}", 0)
        if step % 28:
            file.write(block(step, step + 1, step + 2, step + 3, going_on=step + 4))
        else:
            file.write(block(going_on=step))
        since = AHEAD + (step - 12) / 10
        assert recent.read(since) == read(tmp_path, since)
        looked += any(recent._starts.values())
    assert looked > 50, "what was over was passed over"


def test_what_goes_on_is_the_last_that_is_known_and_only_once(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0")
    file.write(block(1))
    sizes = set()
    for _ in range(100):
        file.write(block(going_on=2))
        sizes.add((tmp_path / f"worker-0{SPANS}").stat().st_size)
    assert len(sizes) == 1, "an hour of waiting writes no more than a second of it"
    assert [(span.step, span.is_open) for span in read(tmp_path)["worker-0"]] == [(1, False), (2, True)]
    file.write(block(2, going_on=3))
    assert [(span.step, span.is_open) for span in read(tmp_path)["worker-0"]] == [(1, False), (2, False), (3, True)]


def test_a_process_that_takes_the_name_of_one_that_was_killed_goes_on_with_its_record(tmp_path: Path) -> None:
    killed = RecordFile(tmp_path, "server-0")
    killed.write(block(1))
    killed.write(block(going_on=2))
    RecordFile(tmp_path, "server-0").write(block(8, going_on=9))
    assert steps(tmp_path, "server-0") == [1, 2, 8, 9]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_frame_that_was_cut_off_is_passed_over_and_written_over(tmp_path: Path, cut: int) -> None:
    file = RecordFile(tmp_path, "worker-0")
    file.write(block(1))
    file.write(block(2))
    path = tmp_path / f"worker-0{SPANS}"
    os.truncate(path, path.stat().st_size - cut)
    assert steps(tmp_path) == [1]
    RecordFile(tmp_path, "worker-0").write(block(3))
    assert steps(tmp_path) == [1, 3]


def test_a_full_file_becomes_the_older_one_and_the_one_before_that_goes(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0", limit=2000)
    for step in range(200):
        file.write(block(step))
    kept = steps(tmp_path)
    assert kept == list(range(kept[0], 200))
    assert 10 < len(kept) < 60
    sizes = [(tmp_path / f"worker-0{suffix}").stat().st_size for suffix in (SPANS, OLDER_SPANS)]
    assert max(sizes) < 2000 + len(to_frame(block(1)))


def test_only_the_last_seconds_need_to_be_read(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0")
    for step in range(100):
        file.write(block(step))
    assert [span.step for span in read(tmp_path, since=AHEAD + 9.75)["worker-0"]] == [97, 98, 99]
    assert read(tmp_path, since=AHEAD + 60) == {}


def test_what_was_dropped_is_counted(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0")
    file.write(block(1, lost=3))
    file.write(block(2, lost=4))
    assert dropped(tmp_path) == {"worker-0": 7}


def test_a_folder_that_is_gone_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "gone", "worker-0")
    file.write(block(1))
    assert read(tmp_path / "gone") == {}
    (tmp_path / "gone").mkdir()
    file.write(block(2))
    assert steps(tmp_path / "gone") == [2]


def test_a_file_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0")
    file.write(block(1))
    (tmp_path / f"worker-0{SPANS}").unlink()
    file.write(block(2))
    assert steps(tmp_path) == [2]


def frame_of(payload: bytes) -> bytes:
    """One whose checksum is right, whatever it holds."""
    until = record_files._TIMED.pack(5e9)
    return record_files._HEAD.pack(b"spn1", len(payload), zlib.crc32(payload, zlib.crc32(until)), 5e9) + payload


HOSTILE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 10,
    "a length without end": b"spn1" + b"\xff" * 16,
    "no msgpack": frame_of(zlib.compress(b"\xc1")),
    "another type": frame_of(zlib.compress(msgspec.msgpack.encode({"spans": []}))),
    "a bomb": frame_of(zlib.compress(bytes(64 << 20))),
    "too many spans": frame_of(zlib.compress(msgspec.msgpack.encode([0.0, 0, [["computing", 1, 1, 1]] * 5000]))),
    "a phase that is none": frame_of(zlib.compress(msgspec.msgpack.encode([0.0, 0, [["plotting", 1, 1, 1]]]))),
    "negative time": frame_of(zlib.compress(msgspec.msgpack.encode([0.0, 0, [["computing", 1, 1, -1]]]))),
    "no compression": frame_of(b"x" * 100),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_nobody_of_ours_wrote_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"worker-0{SPANS}").write_bytes(content)
    (tmp_path / f"..{SPANS}").write_bytes(to_frame(block(1)))
    assert read(tmp_path) == {}
    assert from_frame(content) is None


def test_a_frame_after_one_that_is_not_understood_is_read(tmp_path: Path) -> None:
    (tmp_path / f"worker-0{SPANS}").write_bytes(HOSTILE["a phase that is none"] + to_frame(block(1)))
    assert steps(tmp_path) == [1]


def test_a_frame_travels(tmp_path: Path) -> None:
    assert from_frame(to_frame(block(1, going_on=2))) == block(1, going_on=2)


def test_another_runs_record_is_removed(tmp_path: Path) -> None:
    RecordFile(tmp_path, "worker-0").write(block(1))
    (tmp_path / "notes.spans.txt").write_text("the user's")
    record_files.remove(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.spans.txt"]


def test_the_products_own_limit_holds_however_many_spans_there_are(tmp_path: Path) -> None:
    file = RecordFile(tmp_path, "worker-0")
    largest, seed = 0, 1
    for second in range(1500):
        spans = []
        for number in range(200):  # of which zlib makes little
            seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            detail = f"{seed:016x}" * 3
            spans.append(KeptSpan.of(Phase.COMPUTING, seed % 10**9, second + number / 200, second + 1.0, detail))
        written = SpanBlock(0.0, 0, tuple(spans))
        largest = max(largest, len(to_frame(written)))
        file.write(written)
    sizes = [(tmp_path / f"worker-0{suffix}").stat().st_size for suffix in (SPANS, OLDER_SPANS)]
    assert record_files.LIMIT < sum(sizes) <= 2 * (record_files.LIMIT + largest)
