from __future__ import annotations

import os
import threading
import time

import pytest

from shoal.clock import Deadline
from shoal.cluster import folders, meeting
from shoal.errors import PeerTimeout, UsageError


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
        assert folders.is_alive(folder)
        assert folders.runs(home) == [folder]
    assert folders.runs(home) == []
    assert not folders.is_alive(folder)


def test_dead_runs_are_swept_away_and_living_ones_are_not(home):
    (home / "dead").mkdir()
    (home / "dead" / "key").write_bytes(b"secret")
    with folders.create(home, "r1") as living, folders.create(home, "r2"):
        assert [path.name for path in folders.runs(home)] == ["r1", "r2"]
        assert folders.is_alive(living)


def test_the_coordinator_is_found_as_soon_as_it_says_where_it_listens(tmp_path):
    threading.Timer(0.05, meeting.publish, (tmp_path, "unix:/there")).start()
    assert meeting.find(tmp_path, Deadline.after(10.0)) == "unix:/there"


def test_a_coordinator_that_never_says_where_it_listens_is_named(tmp_path):
    began = time.monotonic()
    with pytest.raises(PeerTimeout, match=r"the coordinator did not write within 0\.\d s") as caught:
        meeting.find(tmp_path, Deadline.after(0.05))
    assert caught.value.missing == ("coordinator",)
    assert time.monotonic() - began < 5
