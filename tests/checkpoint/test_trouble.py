"""Full disks, lost members, other runs: a checkpoint that can't be is told, and what is there stays whole."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.checkpoint import files, read
from shoal.checkpoint import writer as writer_module
from shoal.checkpoint.drafts import Draft, checkpoints, sweep
from shoal.checkpoint.manifest import CheckpointPart
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint, publish, what_lacks
from shoal.checkpoint.read import load, newest_whole
from shoal.checkpoint.writer import Writer, Written

from .scene import LIMIT, arrays_of, header_of, is_right, write

ROOT = Path(__file__).parents[2]


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.close()


class Gate:
    """Where writing stops until it is let through."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._write_all = files.write_all

    def __call__(self, descriptor: int, data: memoryview) -> None:
        self.reached.set()
        assert self.opened.wait(LIMIT)
        self._write_all(descriptor, data)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(files, "write_all", gate)
    yield gate
    gate.opened.set()


def full(descriptor, data):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(tmp_path, writer, monkeypatch):
    older = write(tmp_path, 1)
    draft = Draft(tmp_path, "r1", 2)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_all", full)
        writer.begin(draft, 0, arrays_of(2))
        outcome = writer.wait(LIMIT)
    assert isinstance(outcome, NotWritten)
    assert outcome.step == 2
    assert outcome.why.startswith(f"no checkpoint of step 2 in {tmp_path}: the disk is full (No space left on device).")
    assert outcome.why.endswith("Training goes on.")
    assert list(draft.path.iterdir()) == [], "its space is given back at once"
    writer.discard(draft)
    writer.wait(LIMIT)
    assert not draft.path.exists()
    assert newest_whole(tmp_path) == (older, [])
    writer.begin(Draft(tmp_path, "r1", 3), 0, arrays_of(3))
    assert isinstance(writer.wait(LIMIT), Written), "the next one may work again"


def test_a_disk_that_is_full_for_the_manifest_leaves_no_draft(tmp_path, writer, monkeypatch):
    older = write(tmp_path, 1)
    draft = Draft(tmp_path, "r1", 2)
    writer.begin(draft, 0, arrays_of(2))
    part = writer.wait(LIMIT).part
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_all", full)
        outcome = publish(draft, [part], header_of(2))
    assert isinstance(outcome, NotWritten)
    assert "the disk is full" in outcome.why
    assert [path.name for path in tmp_path.iterdir()] == [older.name]


def test_a_real_limit_of_the_kernel_is_named(tmp_path):
    """A limit on the size of files stands in for a disk of that size."""
    code = (
        "import sys; from pathlib import Path; from tests.checkpoint.scene import *\n"
        "writer = Writer(); writer.begin(Draft(Path(sys.argv[1]), 'r1', 2), 0, arrays_of(2, 100_000))\n"
        "print(writer.wait(LIMIT).why); writer.close()"
    )
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n{code}"
    command = [sys.executable, "-B", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "the file is too large (File too large)" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_folder_that_can_not_be_made_is_told(tmp_path, writer):
    (tmp_path / "file").write_text("not a folder")
    writer.begin(Draft(tmp_path / "file", "r1", 1), 0, arrays_of(1))
    outcome = writer.wait(LIMIT)
    assert isinstance(outcome, NotWritten)
    assert "Not a directory" in outcome.why


def test_too_little_memory_for_the_copy_is_told(tmp_path, writer, monkeypatch):
    def none(*args):
        raise MemoryError

    monkeypatch.setattr(writer_module, "Image", none)
    writer.begin(Draft(tmp_path, "r1", 1), 0, arrays_of(1))
    outcome = writer.poll()
    assert isinstance(outcome, NotWritten)
    assert "no memory for a copy of its tensors" in outcome.why


def test_poll_never_waits_and_one_thing_happens_at_a_time(tmp_path, writer, gate):
    draft = Draft(tmp_path, "r1", 1)
    assert writer.poll() is None
    assert not writer.busy
    writer.begin(draft, 0, arrays_of(1))
    assert writer.busy
    assert writer.poll() is None
    for call in (lambda: writer.begin(draft, 0, arrays_of(1)), lambda: writer.discard(draft)):
        with pytest.raises(RuntimeError, match="still being written"):
            call()
    gate.opened.set()
    outcome = writer.wait(LIMIT)
    assert isinstance(outcome, Written)
    assert writer.poll() == outcome
    assert not writer.busy


def test_closing_gives_up_what_is_half_written(tmp_path, writer, gate, monkeypatch):
    monkeypatch.setattr(writer_module, "CHUNK", 64)
    draft = Draft(tmp_path, "r1", 1)
    writer.begin(draft, 0, arrays_of(1))
    assert gate.reached.wait(LIMIT)
    opener = threading.Thread(target=lambda: writer._abandon.wait(LIMIT) and gate.opened.set())
    opener.start()
    writer.close(LIMIT)
    opener.join()
    assert not writer.busy
    assert isinstance(writer.poll(), NotWritten)
    assert "given up" in writer.poll().why
    assert list(draft.path.iterdir()) == []
    with pytest.raises(RuntimeError, match="closed"):
        writer.begin(draft, 0, arrays_of(1))


def test_closing_waits_no_longer_than_told(tmp_path, writer, gate):
    writer.begin(Draft(tmp_path, "r1", 1), 0, arrays_of(1))
    assert gate.reached.wait(LIMIT)
    writer.close(0.01)
    assert writer.busy, "it is held at the gate, and close came back all the same"
    gate.opened.set()
    assert writer.wait(LIMIT) is not None


def test_a_missing_part_is_no_checkpoint(tmp_path, writer):
    draft = Draft(tmp_path, "r1", 1)
    writer.begin(draft, 0, arrays_of(1))
    part = writer.wait(LIMIT).part
    outcome = publish(draft, [part, CheckpointPart("part-001.safetensors", 5, "0" * 64)], {})
    assert isinstance(outcome, NotWritten)
    assert "part-001.safetensors is missing" in outcome.why
    assert list(tmp_path.iterdir()) == []


def test_a_member_can_not_name_a_file_elsewhere(tmp_path):
    (tmp_path / "secret.safetensors").write_bytes(b"12345")
    draft = Draft(tmp_path, "r1", 1)
    draft.path.mkdir()
    outcome = publish(draft, [CheckpointPart("../secret.safetensors", 5, "0" * 64)], {})
    assert isinstance(outcome, NotWritten)
    assert "is not the name of a part" in outcome.why


def test_two_parts_with_the_same_tensor_are_no_checkpoint(tmp_path):
    draft, writers = Draft(tmp_path, "r1", 1), [Writer(), Writer()]
    for number, writer in enumerate(writers):
        writer.begin(draft, number, {"same": np.zeros(3)})
    parts = [writer.wait(LIMIT).part for writer in writers]
    outcome = publish(draft, parts, {})
    for writer in writers:
        writer.close()
    assert isinstance(outcome, NotWritten)
    assert "'same' twice" in outcome.why


def test_parts_that_do_not_hold_all_of_the_model_are_no_checkpoint_and_the_one_before_stays(tmp_path, writer):
    before = write(tmp_path, 1, keep=1)
    draft = Draft(tmp_path, "r1", 2)
    writer.begin(draft, 0, {"trainable/1/dense/bias": np.zeros(3), "optimizer/0/count[0:2 of 4]": np.zeros(2)})
    part = writer.wait(LIMIT).part
    outcome = publish(draft, [part], {}, needed={"trainable": 2, "optimizer": 1})
    assert isinstance(outcome, NotWritten)
    assert "1 of 2 tensors of the kind 'trainable'" in outcome.why
    assert list(tmp_path.iterdir()) == [before]


def test_tensors_are_counted_by_kind_and_pieces_of_one_as_one():
    names = ["trainable/0/a", "trainable/3/d", "optimizer/0/m[0:2 of 4]", "optimizer/0/m[2:4 of 4]", "seeds"]
    assert what_lacks({"trainable": 2, "optimizer": 1, "seeds": 1}, names) == ""
    assert what_lacks({"optimizer": 2, "state": 1, "seeds": 1}, names) == (
        "1 of 2 tensors of the kind 'optimizer', 0 of 1 tensors of the kind 'state'"
    )


def test_a_part_that_nobody_told_of_is_left_out(tmp_path, writer):
    draft = Draft(tmp_path, "r1", 1)
    writer.begin(draft, 0, arrays_of(1))
    part = writer.wait(LIMIT).part
    (draft.path / "part-001.safetensors").write_bytes(b"of a member that was lost")
    path = publish(draft, [part], header_of(1)).path
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "part-000.safetensors"]
    assert is_right(load(path))


def test_only_the_newest_are_kept_and_the_one_just_written_always(tmp_path):
    for step in (10, 20, 30, 40):
        write(tmp_path, step, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000040", "step-000000030"]
    write(tmp_path, 5, keep=2)  # after going back
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000040", "step-000000005"]
    write(tmp_path, 6, keep=0)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000006"]


def test_a_torn_one_does_not_count_as_kept_and_is_left_for_the_user_to_see(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step)
    (tmp_path / "step-000000003" / "part-000.safetensors").unlink()
    write(tmp_path, 4, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == [f"step-00000000{step}" for step in (4, 3, 2)]


def test_the_same_step_anew_takes_the_others_place(tmp_path):
    write(tmp_path, 1, run="old")
    path = write(tmp_path, 1, members=1, run="new", training="old")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert load(path).manifest.run == "new"


def test_drafts_of_dead_runs_are_swept_away_and_those_of_living_ones_are_not(tmp_path, writer):
    dead = Draft(tmp_path, "dead", 1)
    dead.path.mkdir()
    (dead.path / "part-000.safetensors").write_bytes(b"half")
    (tmp_path / ".gone-step-000000001-ab").mkdir()
    living = Draft(tmp_path, "living", 7)
    writer.begin(living, 0, arrays_of(7))
    part = writer.wait(LIMIT).part
    write(tmp_path, 5, run="other")
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000005", living.path.name}
    assert isinstance(publish(living, [part], header_of(7)), PublishedCheckpoint)


def test_of_its_own_drafts_a_run_sweeps_the_older_ones_only(tmp_path):
    older, current, newer = (Draft(tmp_path, "r1", step, view) for step, view in [(3, 9), (4, 1), (4, 2)])
    for draft in (older, current, newer):
        draft.path.mkdir()
    sweep(tmp_path, current)
    assert {path.name for path in tmp_path.iterdir()} == {current.path.name, newer.path.name}


def test_what_fails_after_the_rename_is_a_warning(tmp_path, writer, monkeypatch):
    write(tmp_path, 1)
    draft = Draft(tmp_path, "r1", 2)
    writer.begin(draft, 0, arrays_of(2))
    part = writer.wait(LIMIT).part

    def no(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("shoal.checkpoint.storage.local.checkpoints", no)
    outcome = publish(draft, [part], header_of(2))
    assert isinstance(outcome, PublishedCheckpoint)
    assert "old checkpoints could not be removed: Input/output error" in outcome.warning
    assert is_right(read.load(outcome.path))


def test_another_trainings_checkpoints_are_neither_pruned_nor_replaced(tmp_path, writer):
    """Two runs that share a folder after all: each keeps its own, and says so where they want the same name."""
    for step in (10, 20, 30):
        write(tmp_path, step, run="other")
    for step in (11, 12, 13):
        write(tmp_path, step, run="mine", keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == [f"step-0000000{step}" for step in (30, 20, 13, 10)]
    draft = Draft(tmp_path, "mine", 20)
    writer.begin(draft, 0, arrays_of(20))
    outcome = publish(draft, [writer.wait(LIMIT).part], header_of(20))
    assert isinstance(outcome, NotWritten)
    assert "step-000000020 there is of another training, of run other" in outcome.why
    assert "Give each run a folder of its own" in outcome.why
    assert load(tmp_path / "step-000000020").manifest.run == "other"
    assert not draft.path.exists()


def test_a_run_that_goes_on_from_another_prunes_and_replaces_what_that_one_wrote(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, step, run="first")
    write(tmp_path, 30, run="second", training="first", keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000030", "step-000000020"]
    write(tmp_path, 40, run="third", training="first", keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000040", "step-000000030"]
    assert [load(path).manifest.run for path in checkpoints(tmp_path)] == ["third", "second"]
    assert {load(path).manifest.first_run for path in checkpoints(tmp_path)} == {"first"}
