"""Folders of their own on each host: who writes what, who makes it a checkpoint, what is gone on from. Pure."""

from __future__ import annotations

from pathlib import Path

from shoal.checkpoint.host_folders import FolderWriters, readers
from shoal.launch.host_folder import HeldCheckpoint, HostFolder, are_apart, holders, marked, newest_held

SIZES = {"kernel": 800, "bias": 8, "momentum": 800, "seeds": 16}
FOUR = FolderWriters({"worker-0": "a", "worker-1": "a", "worker-2": "b", "worker-3": "b"})


def test_every_folder_gets_every_tensor_once() -> None:
    for pair in (("worker-0", "worker-1"), ("worker-2", "worker-3")):
        written = [name for member in pair for name in FOUR.share(member, SIZES)]
        assert sorted(written) == sorted(SIZES)
    assert FOUR.hosts("worker-2") == ("b", "a"), "its own first"


def test_a_guest_writes_nothing_and_nobody_waits_for_it() -> None:
    folders = FolderWriters({"worker-0": "a", "worker-1000": ""})
    assert folders.writers == ("worker-0",)
    assert folders.share("worker-1000", SIZES) == []
    assert not folders.leads("worker-1000", ["worker-0", "worker-1000"])
    assert sorted(folders.share("worker-0", SIZES)) == sorted(SIZES)


def test_the_first_worker_of_a_folder_that_is_left_makes_it_a_checkpoint() -> None:
    assert [member for member in FOUR.writers if FOUR.leads(member, FOUR.writers)] == ["worker-0", "worker-2"]
    left = ["worker-1", "worker-3"]
    assert [member for member in left if FOUR.leads(member, left)] == left


def test_only_who_sees_a_whole_copy_reads_it() -> None:
    assert readers([False, True, True]) == [1, 2]
    assert readers([False, False]) == []


def held(step: int) -> HeldCheckpoint:
    return HeldCheckpoint(f"step-{step:09}", step, "r", "r", "", b"")


def test_the_newest_copy_of_any_host_is_gone_on_from() -> None:
    folders = {"a": HostFolder("a", held(10)), "b": HostFolder("b", held(20)), "c": HostFolder("c")}
    assert are_apart(folders)
    assert newest_held(folders) == ("b", held(20))
    assert holders(folders, held(20)) == ("b",)
    assert newest_held({"c": HostFolder("c")}) is None


def test_hosts_that_see_one_folder_find_the_same_name_in_it(tmp_path: Path) -> None:
    with marked(tmp_path / "one", "r", "a") as first, marked(tmp_path / "one", "r", "b") as second:
        assert (first, second) == ("a", "a")
        with marked(tmp_path / "other", "r", "b") as third:
            assert third == "b"
    assert not [*(tmp_path / "one").iterdir()], "nothing is left"
