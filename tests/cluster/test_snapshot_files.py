"""What workers leave for those who come when all of them are gone."""

from __future__ import annotations

from shoal.cluster.snapshot_files import SnapshotFiles


def test_one_is_left_at_a_time_and_by_the_first_who_comes_there(tmp_path):
    snapshots = SnapshotFiles(tmp_path)
    snapshots.leave("0-0", lambda: b"one")
    snapshots.leave("0-0", lambda: b"another's")
    assert snapshots.find("0-0") == b"one"
    SnapshotFiles(tmp_path).leave("0-1", lambda: b"two")
    assert snapshots.find("0-0") is None
    assert snapshots.find("0-1") == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot-0-1"]


def test_what_can_not_be_written_is_not_there_and_nothing_old_either(tmp_path):
    snapshots = SnapshotFiles(tmp_path)
    snapshots.leave("0-0", lambda: b"one")

    def no_room() -> bytes:
        raise OSError(28, "No space left on device")

    snapshots.leave("0-1", no_room)
    assert snapshots.find("0-1") is None
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_left():
    snapshots = SnapshotFiles(None)
    snapshots.leave("0-0", lambda: b"one")
    assert snapshots.find("0-0") is None
