"""Checkpoints in an S3: only what is whole is ever seen, and what the store refuses is told."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.checkpoint.scene import LIMIT, arrays_of, header_of, is_right, write

from shoal.checkpoint import writer as writer_module
from shoal.checkpoint.addresses import StoreAddress, place_of
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.publish import NotWritten, PublishedCheckpoint, publish
from shoal.checkpoint.read import describe, load, newest_whole, verify
from shoal.checkpoint.storage import objects
from shoal.checkpoint.storage.choice import storage_of
from shoal.checkpoint.writer import Writer, Written
from shoal.errors import BadCheckpoint, UsageError


@pytest.fixture
def folder(s3, request):
    return place_of(f"s3://bucket/{request.node.name}")


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.close()


def names(folder):
    return [path.name for path in storage_of(folder).checkpoints()]


def keys(s3, folder):
    return sorted(key.removeprefix(f"{folder.key}/") for key in s3.files().find(folder.key))


def part_of(writer, draft, step, number=0):
    writer.begin(draft, number, arrays_of(step))
    outcome = writer.wait(LIMIT)
    assert isinstance(outcome, Written), outcome
    return outcome.part


def test_what_was_written_comes_back_bit_for_bit(s3, folder):
    path = write(folder, 7, members=3)
    assert str(path) == f"{folder}/step-000000007"
    assert is_right(load(path))
    assert verify(path).step == 7
    assert newest_whole(folder) == (path, [])
    assert keys(s3, folder) == [
        "step-000000007/manifest.json",
        *(f"step-000000007/r1-0/part-00{number}.safetensors" for number in range(3)),
    ]


def test_some_tensors_are_read_without_the_parts_that_do_not_have_them(s3, folder):
    path = write(folder, 7, members=4)
    held = {tensor.name: tensor.part for tensor in describe(path).tensors}
    wanted = "state/0/counter"
    for name, part in held.items():
        if part != held[wanted]:
            s3.files().rm(f"{folder.key}/step-000000007/r1-0/{part}")
            assert name != wanted
            break
    assert load(path, lambda name: name == wanted).arrays[wanted] == 7


def test_a_part_larger_than_a_block_is_sent_in_several(s3, folder, monkeypatch):
    monkeypatch.setattr(objects, "_BLOCK", 5 * 2**20)
    monkeypatch.setattr(objects, "_RANGE", 1_000_000)
    path = write(folder, 3, members=1, size=2_000_000)
    assert is_right(load(path), 2_000_000)
    assert verify(path).nbytes > 15 * 2**20


def test_without_its_manifest_nobody_takes_it_for_a_checkpoint(s3, folder, writer):
    older = write(folder, 1)
    draft = Draft(folder, "r1", 2)
    part = part_of(writer, draft, 2)
    assert newest_whole(folder) == (older, [])
    with pytest.raises(BadCheckpoint, match=r"there is no manifest\.json there"):
        describe(draft.final)
    assert isinstance(publish(draft, [part], header_of(2), keep=5), PublishedCheckpoint)
    assert names(folder) == ["step-000000002", "step-000000001"]


def test_a_part_that_is_missing_cut_or_changed_is_found_and_the_one_before_is_taken(s3, folder):
    older = write(folder, 1)
    path = write(folder, 2, members=2)
    key = f"{folder.key}/step-000000002/r1-0/part-001.safetensors"
    whole = s3.files().cat_file(key)
    for damaged, why in (
        (whole[:-1], "it was written with"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "does not match its digest"),
        (None, "part-001.safetensors is missing"),
    ):
        s3.files().rm(key)
        if damaged is not None:
            s3.files().pipe_file(key, damaged)
        with pytest.raises(BadCheckpoint, match=why):
            load(path)
        found, ((skipped, told),) = newest_whole(folder)
        assert (found, skipped) == (older, path)
        assert why in told


def test_only_the_newest_are_kept(s3, folder):
    for step in (10, 20, 30, 40):
        write(folder, step, keep=2)
    assert names(folder) == ["step-000000040", "step-000000030"]
    assert {key.partition("/")[0] for key in keys(s3, folder)} == {"step-000000040", "step-000000030"}


def test_the_same_step_anew_takes_the_others_place_and_until_then_that_one_stays_whole(s3, folder, writer):
    path = write(folder, 1, run="old")
    draft = Draft(folder, "new", 1, training="old")
    part = part_of(writer, draft, 1)
    assert load(path).manifest.run == "old"
    publish(draft, [part], header_of(1))
    assert load(path).manifest.run == "new"
    assert keys(s3, folder) == ["step-000000001/manifest.json", "step-000000001/new-0/part-000.safetensors"]


def test_another_trainings_checkpoints_are_neither_pruned_nor_replaced(s3, folder, writer):
    write(folder, 20, run="other")
    write(folder, 30, run="mine", keep=1)
    draft = Draft(folder, "mine", 20)
    outcome = publish(draft, [part_of(writer, draft, 20)], header_of(20))
    assert isinstance(outcome, NotWritten)
    assert "step-000000020 there is of another training, of run other" in outcome.why
    assert load(folder / "step-000000020").manifest.run == "other"
    assert not [key for key in keys(s3, folder) if "mine-0" in key and "step-000000020" in key]


def test_drafts_that_were_left_are_swept_away_own_ones_at_once_others_when_they_are_old(
    s3, folder, writer, monkeypatch
):
    part_of(writer, Draft(folder, "r1", 1, view=3), 1)
    part_of(writer, Draft(folder, "other", 1), 1)
    part_of(writer, Draft(folder, "r1", 9), 9)
    write(folder, 2)
    left = {key.rpartition("/")[0] for key in keys(s3, folder)}
    assert left == {"step-000000002", "step-000000002/r1-0", "step-000000001/other-0", "step-000000009/r1-0"}
    monkeypatch.setattr(objects, "ABANDONED_AFTER", timedelta(0))
    write(folder, 3)
    left = {key.rpartition("/")[0] for key in keys(s3, folder)}
    assert not [name for name in left if "other" in name]
    assert names(folder) == ["step-000000003", "step-000000002"]


def test_what_is_given_up_leaves_no_object(s3, folder, writer, monkeypatch):
    """An upload that is closed instead of being given up would make an object of its first half."""
    monkeypatch.setattr(writer_module, "CHUNK", 1000)
    draft, begun = Draft(folder, "r1", 1), threading.Event()

    class Halfway:
        """Stands after 600 of 1,200 chunks until the writer is closed."""

        chunks = 0

        def update(self, chunk):
            self.chunks += 1
            if self.chunks == 600:
                begun.set()
                assert writer._abandon.wait(LIMIT)

    monkeypatch.setattr(writer_module.hashlib, "new", lambda name: Halfway())
    writer.begin(draft, 0, arrays_of(1, 100_000))
    assert begun.wait(LIMIT)
    writer.close(LIMIT)
    assert isinstance(writer.poll(), NotWritten)
    assert "given up" in writer.poll().why
    assert keys(s3, folder) == []


def test_a_draft_that_failed_elsewhere_is_discarded_without_waiting(s3, folder, writer):
    draft = Draft(folder, "r1", 1)
    part_of(writer, draft, 1)
    writer.discard(draft)
    writer.wait(LIMIT)
    assert keys(s3, folder) == []


def test_a_manifest_that_was_written_though_the_store_said_otherwise_is_taken_back(s3, folder, writer, monkeypatch):
    draft = Draft(folder, "r1", 1)
    part, storage = part_of(writer, draft, 1), storage_of(folder)
    really = storage._system.pipe_file

    def lies(*given, **more):
        really(*given, **more)
        raise TimeoutError("no answer")

    monkeypatch.setattr(storage._system, "pipe_file", lies)
    outcome = publish(draft, [part], header_of(1))
    assert isinstance(outcome, NotWritten)
    assert "no answer" in outcome.why
    assert keys(s3, folder) == []


def test_a_copy_on_disk_is_a_checkpoint_too(s3, folder, tmp_path):
    path = write(folder, 5)
    s3.files().get(path.key, str(tmp_path / path.name), recursive=True)
    assert is_right(load(tmp_path / path.name))


def test_a_folder_of_parts_that_is_a_link_is_refused(s3, folder, tmp_path):
    path = write(folder, 5)
    s3.files().get(path.key, str(tmp_path / path.name), recursive=True)
    inside = tmp_path / path.name / "r1-0"
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCheckpoint, match="r1-0 in it is a link"):
        load(tmp_path / path.name)


def test_a_run_may_write_there_and_nothing_is_left_of_the_attempt(s3, folder):
    said = []
    with storage_of(folder).claimed("r1", said.append) as descriptor:
        assert descriptor is None
    assert "can't be locked" in said[0]
    assert keys(s3, folder) == []


def test_a_bucket_that_is_not_there_is_named_before_anything_starts(s3):
    with (
        pytest.raises(UsageError, match=r"can't write checkpoints to s3://no-such/deep: there is no s3://no-such,"),
        storage_of(place_of("s3://no-such/deep")).claimed("r1", print),
    ):
        pass


def test_credentials_that_the_store_refuses_are_named_before_anything_starts(own_s3):
    own_s3.demand_credentials(after=0)
    with (
        pytest.raises(UsageError, match="the store refuses these credentials"),
        storage_of(place_of("s3://bucket/ours")).claimed("r1", print),
    ):
        pass


def test_a_store_that_does_not_answer_is_named_and_an_older_checkpoint_is_no_substitute(own_s3):
    folder = place_of("s3://bucket/gone")
    write(folder, 1)
    path = write(folder, 2)
    storage = storage_of(folder)
    own_s3.kill()
    for asked in (lambda: storage.claimed("r1", print).__enter__(), storage.checkpoints, storage.is_checkpoint):
        with pytest.raises(UsageError, match="connect"):
            asked()
    with pytest.raises(BadCheckpoint, match="it can't be read"):
        load(path)


def test_a_store_that_fails_while_asked_for_the_newest_does_not_yield_an_older_one(s3, folder, monkeypatch):
    write(folder, 1)
    newest = write(folder, 2)
    storage = type(storage_of(folder))
    really = storage.range_of

    def fails(self, key, start, stop):
        if "step-000000002" in key and key.endswith(".safetensors"):
            raise objects.StoreUnreachable("no answer")
        return really(self, key, start, stop)

    monkeypatch.setattr(storage, "range_of", fails)
    with pytest.raises(UsageError, match=f"can't tell whether {newest} is whole: no answer"):
        newest_whole(folder)


def test_a_store_that_is_silent_is_named_when_its_time_is_up(monkeypatch):
    monkeypatch.setattr(objects, "ANSWERS_WITHIN", 0.1)
    released = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *given, **more: released.wait(LIMIT))
    began = time.monotonic()
    with (
        pytest.raises(UsageError, match="it has not answered within"),
        storage_of(place_of("memory://bucket/folder")).claimed("r1", print),
    ):
        pass
    released.set()
    assert time.monotonic() - began < LIMIT


def test_a_store_that_fails_while_training_costs_a_checkpoint(own_s3, writer):
    folder = place_of("s3://bucket/fails")
    part_of(writer, Draft(folder, "r1", 1), 1)
    own_s3.kill()
    writer.begin(Draft(folder, "r1", 2), 0, arrays_of(2))
    outcome = writer.wait(LIMIT * 2)
    assert isinstance(outcome, NotWritten), outcome
    assert outcome.why.startswith(f"no checkpoint of step 2 in {folder}: ")
    assert outcome.why.endswith("Training goes on.")


def test_training_waits_for_the_copy_only(s3, folder, writer, monkeypatch):
    """As on disk: `begin` comes back before the store has answered anything."""
    released = threading.Event()
    storage = type(storage_of(folder))
    really = storage.write

    def slow(self, *given):
        assert released.wait(LIMIT)
        really(self, *given)

    monkeypatch.setattr(storage, "write", slow)
    writer.begin(Draft(folder, "r1", 1), 0, arrays_of(1))
    assert writer.busy
    assert writer.poll() is None
    released.set()
    assert isinstance(writer.wait(LIMIT), Written)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://", "is no address of a store"),
        ("s3://bucket/a//b", "is no address of a store"),
        ("s3://bucket/../other", "is no address of a store"),
        ("file://folder", "is no path"),
        ("nosuch://bucket/folder", "can't use nosuch://bucket/folder: Protocol not known"),
        ("gs://bucket/folder", "needs another package: .*gcsfs"),
    ],
)
def test_addresses_that_can_not_be_are_refused(text, why):
    with pytest.raises(UsageError, match=why):
        storage_of(place_of(text))


def test_an_address_is_used_as_a_path_is(tmp_path):
    address = place_of("S3://bucket/folder/")
    assert address == StoreAddress("s3", "bucket/folder")
    assert ((address / "step-000000001").name, (address / "x").parent) == ("step-000000001", address)
    assert place_of(f"file://{tmp_path}") == tmp_path
    assert place_of("a:b").is_absolute()
