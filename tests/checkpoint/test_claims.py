"""One run at a time writes into a folder of checkpoints."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shoal.checkpoint.claims import claim
from shoal.errors import UsageError

HOLDS = """
import subprocess, sys, time
from pathlib import Path
from shoal.checkpoint.claims import claim
with claim(Path(sys.argv[1]), "r-dies", lambda text: None) as held:
    print(subprocess.Popen(["sleep", "1000"], pass_fds=[held]).pid, flush=True)
    time.sleep(1000)
"""


def nothing(text: str) -> None:
    raise AssertionError(text)


def test_a_second_run_is_refused_and_told_whose_folder_it_is(tmp_path):
    folder = tmp_path / "deep" / "checkpoints"
    with claim(folder, "r1", nothing), pytest.raises(UsageError) as refused, claim(folder, "r2", nothing):
        pass
    whose = f"run r1 (pid {os.getpid()} on {platform.node()})"
    assert str(refused.value).startswith(f"{folder} is in use: {whose} writes its checkpoints there.")
    with claim(folder, "r2", nothing):
        pass
    assert list(folder.iterdir()) == [], "nothing stays"


def test_a_run_is_let_go_of_by_the_kernel_when_the_last_of_its_processes_is_gone(tmp_path):
    """The coordinator inherits the claim: it outlives a launcher that is killed, until a last checkpoint is written."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        heir = psutil.Process(int(holder.stdout.readline()))
    for dies in (holder, heir):
        whose = rf"run r-dies \(pid {holder.pid} on "
        with pytest.raises(UsageError, match=whose), claim(tmp_path, "r2", nothing):
            pass
        dies.kill()
        dies.wait(20)
    with claim(tmp_path, "r2", nothing):
        pass


def test_one_that_was_given_up_while_another_opened_it_is_not_taken_for_the_folders(tmp_path, monkeypatch):
    """The file that it had opened is no longer the one that has the name: a third run would lock another."""
    flock = fcntl.flock
    removed = []

    def slow(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()

    monkeypatch.setattr(fcntl, "flock", slow)
    with (
        claim(tmp_path, "r1", nothing),
        pytest.raises(UsageError, match=r"is in use: run r1"),
        claim(tmp_path, "r2", nothing),
    ):
        pass
    assert removed


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_there_are_no_locks_the_user_is_told(tmp_path, monkeypatch, number):
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said: list[str] = []
    with claim(tmp_path, "r1", said.append) as held:
        assert held is None
    (text,) = said
    assert f"can't lock {tmp_path}" in text
    assert "no other run writes checkpoints there" in text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(UsageError, match=f"can't write checkpoints to {folder}: "), claim(folder, "r1", nothing):
            pass
