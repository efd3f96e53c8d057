"""A guest whose launcher is killed before it takes part ends at once, and takes its folder and its children with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from .launched import eventually, is_alive

_GUEST = """
import os, subprocess, sys, time
from pathlib import Path
from shoal.launch.parents import Guest
guest = Guest(int(sys.argv[1]), Path(sys.argv[2]))
child = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), child.pid, flush=True)
time.sleep(1000)
"""

_LAUNCHER = """
import os, subprocess, sys
words = [sys.executable, "-c", sys.argv[2], str(os.getpid()), sys.argv[1]]
subprocess.run(words, start_new_session=True)
"""


def test_a_guest_that_has_not_joined_yet_ends_with_its_launcher(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "key").touch()
    words = [sys.executable, "-c", _LAUNCHER, str(folder), _GUEST]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        started = [psutil.Process(int(pid)) for pid in launcher.stdout.readline().split()]
        assert len(started) == 2
        launcher.send_signal(signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, started)), "both are gone")
    assert not folder.exists()


def test_a_guest_leaves_its_folder_to_a_launcher_that_lives(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _GUEST, str(os.getpid()), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as guest:
        assert guest.stdout is not None
        guest.stdout.readline()
        guest.terminate()
        assert guest.wait(20.0) == 75, "it has left the run, which it had not joined yet"
        os.killpg(guest.pid, signal.SIGKILL)
    assert tmp_path.exists()
