"""Where in its Python code a process is that can't say so itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.cluster import stacks

LOOP = "def turning():\n    while True: pass\n"
LOCKED = """
import threading
lock = threading.Lock()
def holds_it():
    with lock: threading.Event().wait()
threading.Thread(target=holds_it, name='holder', daemon=True).start()
while not lock.locked(): pass
def wants_it():
    with lock: pass
"""


@contextmanager
def process(folder: Path, code: str, answers: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    asked = f"from pathlib import Path\nfrom shoal.cluster import stacks\nstacks.answer(Path({str(folder)!r}), 'w')\n"
    up = folder / "up"
    script = f"{asked if answers else ''}open({str(up)!r}, 'w').close()\n{code}\n"
    calls = {LOOP: "turning()", LOCKED: "wants_it()"}.get(code, "")
    one = subprocess.Popen([sys.executable, "-c", script + calls])
    try:
        eventually(up.exists)
        yield one
    finally:
        one.kill()
        one.wait()


def eventually(happens: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < limit
        time.sleep(0.01)


def text_of(folder: Path, pid: int) -> str:
    eventually(lambda: "is here" in stacks.told(folder, "w", pid))
    return stacks.told(folder, "w", pid)


@pytest.mark.parametrize(("code", "where"), [(LOOP, "in turning"), (LOCKED, "in wants_it")], ids=["loop", "lock"])
def test_it_is_told_from_an_endless_loop_and_from_under_a_lock(tmp_path: Path, code: str, where: str) -> None:
    with process(tmp_path, code) as one:
        eventually(lambda: stacks.ask(tmp_path, "w", one.pid) and where in text_of(tmp_path, one.pid))
        text = text_of(tmp_path, one.pid)
        assert text.startswith(f"w (pid {one.pid}) is here, the last call first:\n    Current thread")
        assert where in text
        assert code != LOCKED or "in holds_it" in text
        assert one.poll() is None


def test_one_of_another_host_tells_it_itself_from_a_thread_that_still_runs() -> None:
    heard: list[str] = []
    asked = threading.Event()

    def answers() -> None:
        asked.wait()
        heard.append(stacks.of_this_process())

    def stuck_here(thread: threading.Thread) -> None:
        asked.set()
        thread.join(20)

    thread = threading.Thread(target=answers)
    thread.start()
    stuck_here(thread)
    first, *_ = heard[0].splitlines()
    assert first == "    Thread MainThread (most recent call first):"
    assert "in stuck_here" in heard[0]
    assert "in answers" not in heard[0]


def test_a_process_that_knows_nothing_of_it_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "w.stack").touch()  # of one before it
    with process(tmp_path, "import time; time.sleep(60)", answers=False) as one:
        assert not stacks.ask(tmp_path, "w", one.pid)
        time.sleep(0.1)
        assert one.poll() is None, "it did not die of the question"
    assert not stacks.ask(tmp_path, "w", one.pid)
    assert stacks.told(tmp_path, "w", one.pid) == ""


def test_one_that_is_stopped_is_called_stopped(tmp_path: Path) -> None:
    with process(tmp_path, LOOP) as one:
        os.kill(one.pid, signal.SIGSTOP)
        stacks.ask(tmp_path, "w", one.pid)
        eventually(lambda: "stopped" in stacks.told(tmp_path, "w", one.pid))
        assert f"`kill -CONT {one.pid}` lets it go on" in stacks.told(tmp_path, "w", one.pid)
