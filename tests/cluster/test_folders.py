from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from shoal.clock import Deadline
from shoal.cluster import coordinator_address, folders
from shoal.errors import PeerTimeout, UsageError
from shoal.wire.held_folder import is_alive


@pytest.fixture
def home(tmp_path):
    return folders.home({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_only_the_owner_may_enter(home):
    assert home.stat().st_mode & 0o777 == 0o700
    with folders.create(home, "r1") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700


def test_without_a_runtime_folder_the_temporary_one_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert folders.home({}) == tmp_path / f"shoal-{os.getuid()}"


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "shoal").mkdir(mode=0o755)
    (tmp_path / "shoal").chmod(0o755)
    with pytest.raises(UsageError, match="found mode 0755"):
        folders.home({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "shoal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="not safe"):
        folders.home({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_runs_folder_goes_with_the_run(home):
    with folders.create(home, "r1") as folder:
        assert is_alive(folder)
        assert folders.runs(home) == [folder]
    assert folders.runs(home) == []
    assert not is_alive(folder)


def test_dead_runs_are_swept_away_and_living_ones_are_not(home):
    (home / "dead").mkdir()
    (home / "dead" / "key").write_bytes(b"secret")
    with folders.create(home, "r1") as living, folders.create(home, "r2"):
        assert [path.name for path in folders.runs(home)] == ["r1", "r2"]
        assert is_alive(living)


def test_the_coordinator_is_found_as_soon_as_it_says_where_it_listens(tmp_path):
    threading.Timer(0.05, coordinator_address.publish, (tmp_path, "unix:/there")).start()
    assert coordinator_address.find(tmp_path, Deadline.after(10.0)) == "unix:/there"


def test_a_coordinator_that_never_says_where_it_listens_is_named(tmp_path):
    began = time.monotonic()
    with pytest.raises(PeerTimeout, match=r"the coordinator did not write within 0\.\d s") as caught:
        coordinator_address.find(tmp_path, Deadline.after(0.05))
    assert caught.value.missing == ("coordinator",)
    assert time.monotonic() - began < 5


@pytest.fixture
def kept(home):
    with folders.create(home, "r1") as folder:
        (folder / "key").write_bytes(b"secret")
        (folder / "run.json").write_bytes(b"{}")
        keeper = folders.FolderKeeper(folder)
        yield keeper, folder
        keeper.close()


def test_a_folder_that_was_deleted_is_made_anew_and_held(kept, home):
    keeper, folder = kept
    assert not keeper.restore(), "all is there"
    for gone in (folder, home):
        shutil.rmtree(gone)
        assert keeper.restore()
        assert not keeper.restore()
        assert (folder / "key").read_bytes() == b"secret"
        assert (folder / "run.json").read_bytes() == b"{}"
        assert (folder / "key").stat().st_mode & 0o777 == 0o600
        assert [path.stat().st_mode & 0o777 for path in (home, folder)] == [0o700, 0o700]
        assert is_alive(folder), "the next launch does not sweep it away"


def test_a_file_that_was_deleted_is_put_back_and_the_others_stay(kept):
    keeper, folder = kept
    (folder / "record").write_bytes(b"of the coordinator")
    (folder / "key").unlink()
    assert keeper.restore()
    assert (folder / "key").read_bytes() == b"secret"
    assert (folder / "record").read_bytes() == b"of the coordinator"


def test_a_folder_that_can_not_be_made_anew_is_an_error(kept, home):
    keeper, _ = kept
    shutil.rmtree(home)
    home.touch()
    with pytest.raises(UsageError, match="can't make"):
        keeper.restore()
    home.unlink()


def test_a_folder_is_not_made_anew_where_others_may_enter(kept, home):
    keeper, folder = kept
    shutil.rmtree(home)
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    with pytest.raises(UsageError, match="found mode 0755"):
        keeper.restore()
    assert not folder.exists()


def test_what_a_killed_worker_kept_elsewhere_goes_with_the_runs_folder(home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("private")
    with folders.create(home, "run") as folder:
        folders.remember(folder, str(elsewhere))
    assert not elsewhere.exists()
    assert not folder.exists()
