"""Every failure is named: who, at which step, doing what, since when; and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import time
from types import SimpleNamespace

import pytest

from shoal.cluster.messages import End
from shoal.launch.local import _Launcher
from shoal.launch.worker import ENDED

from .launched import World, eventually, status

# What ends a run that goes on after a loss too.
either_way = pytest.mark.parametrize("options", [(), ("--fail-fast",)], ids=["lasting", "fail-fast"])


def test_an_error_on_one_worker_ends_the_run_with_its_traceback(world: World):
    run = world.run(
        """
say(12, "computing piece 3")
def inner(): raise ValueError("bad pixel")
if me.rank == 1: inner()
exchange()
""",
        "-n",
        2,
        "--fail-fast",
    )
    assert run.wait() == 1
    assert "the run ended: worker-1 raised ValueError: bad pixel at step 12 (computing piece 3)" in run.err
    block = run.err[run.err.index("worker-1's traceback:") :]
    assert "in inner" in block
    assert "train.py" in block
    assert "runpy" not in run.err
    assert "shoal/launch" not in run.err
    assert "worker-1.log" in block
    assert "bad pixel" in run.log("worker-1")


def test_the_chiefs_traceback_is_shown_once(world: World):
    run = world.run("if me.rank == 0: raise KeyError('colour')\nexchange()", "-n", 2, "--fail-fast")
    assert run.wait() == 1
    assert run.err.count("Traceback") == 1
    assert "worker-0 raised KeyError: 'colour'" in run.err
    assert "traceback of worker-0 is above" in run.err


def test_the_same_error_on_all_workers_is_said_once(world: World):
    run = world.run("raise RuntimeError('no data')", "-n", 3, "--fail-fast")
    assert run.wait() == 1
    assert "all 3 workers raised RuntimeError: no data" in run.err
    assert run.err.count("the run ended") == 1


@either_way
def test_a_script_that_does_not_parse_is_an_error_like_any_other(world: World, options: tuple[str, ...]):
    run = world.run("def broken(:\n", "-n", 2, *options)
    assert run.wait() == 1
    assert "raised SyntaxError" in run.err
    assert "runpy" not in run.err


def test_a_killed_worker_is_named_with_its_signal(world: World):
    run = world.run("say(7, 'exchanging')\nmark('up')\nexchange()", "-n", 2, "--fail-fast")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    eventually(lambda: [m["step"] for m in status(world)[0]["members"]] == [0, 7, 7], "a beat told the step")
    began = time.monotonic()
    os.kill(run.pid("worker-1"), signal.SIGKILL)
    assert run.wait() == 1
    assert time.monotonic() - began < 6
    assert re.search(r"worker-1 \(pid \d+\) was killed by SIGKILL at step 7 \(exchanging\)", run.err)
    assert "out of memory" in run.err


def test_a_crash_in_native_code_shows_the_python_stack(world: World):
    run = world.run("import ctypes\nif me.rank == 1: ctypes.string_at(0)\nexchange()", "-n", 2, "--fail-fast")
    assert run.wait() == 1
    assert "worker-1 (pid" in run.err
    assert "killed by SIGSEGV" in run.err
    assert "Fatal Python error: Segmentation fault" in run.err


def test_a_stopped_worker_is_lost_after_its_deadline(world: World):
    run = world.run("say(3, 'computing')\nmark('up')\nexchange()", "-n", 2, "--fail-fast", "--timeout", 1)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    began = time.monotonic()
    os.kill(run.pid("worker-1"), signal.SIGSTOP)
    assert run.wait() == 1
    assert 0.8 < time.monotonic() - began < 8
    assert re.search(r"worker-1 \(pid \d+\) was silent for \d\.\d s \(deadline 1\.0 s\) at step", run.err)
    assert "its process is stopped" in run.err
    assert "--timeout" in run.err


def test_a_worker_that_holds_pythons_lock_in_a_long_call_is_not_lost(world: World):
    run = world.run("if me.rank == 1: sum(range(80_000_000))", "-n", 2, "--fail-fast", "--timeout", 0.5)
    assert run.wait() == 0, run.err


@either_way
def test_a_worker_that_finishes_while_another_waits_for_it_is_named(world: World, options: tuple[str, ...]):
    run = world.run(
        """
if me.rank == 0:
    say(9, "exchanging at fit step 9", exchanging=True)
    exchange()
say(8, "fit")
""",
        "-n",
        2,
        "--timeout",
        0.5,
        *options,
    )
    assert run.wait() == 1
    assert "worker-1 finished its script at step 8, but worker-0 has been waiting for it" in run.err
    assert "at step 9 (exchanging at fit step 9)" in run.err


@either_way
def test_a_script_that_exits_with_a_code_gives_the_run_that_code(world: World, options: tuple[str, ...]):
    run = world.run("sys.exit(7)", "-n", 2, *options)
    assert run.wait() == 7
    assert "exited with code 7" in run.err


def test_a_worker_that_leaves_without_a_word_is_named(world: World):
    run = world.run("if me.rank == 1: os._exit(0)\nexchange()", "-n", 2, "--fail-fast")
    assert run.wait() == 1
    assert "worker-1 (pid" in run.err
    assert "exited with code 0 without having finished its script" in run.err


@either_way
def test_a_worker_that_dies_before_it_joins_is_named_with_its_last_lines(world: World, options: tuple[str, ...]):
    (world.folder / "sitecustomize.py").write_text(
        "import sys\nif 'worker-1' in sys.orig_argv: sys.stderr.write('no such disk\\n'); raise SystemExit(9)\n"
    )
    run = world.run("exchange()", "-n", 2, *options, PYTHONPATH=str(world.folder))
    assert run.wait() == 1
    assert "worker-1 exited with code" in run.err
    assert "before it had joined the run" in run.err
    assert "no such disk" in run.err


def test_a_coordinator_that_is_killed_ends_the_run(world: World):
    run = world.run("mark('up')\nexchange()", "-n", 2, "--fail-fast")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    pid = run.pid("coordinator")
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 1
    assert f"the coordinator (pid {pid}) was killed by SIGKILL" in run.err


def test_a_coordinator_that_is_stopped_ends_the_run(world: World):
    run = world.run("mark('up')\nforever()", "-n", 2, "--fail-fast", "--timeout", 0.5)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    os.kill(run.pid("coordinator"), signal.SIGSTOP)
    assert run.wait() == 1
    assert "the coordinator (pid" in run.err
    assert "has been stopped for" in run.err


@either_way
def test_a_launcher_that_is_killed_leaves_nobody_behind(world: World, options: tuple[str, ...]):
    run = world.run(
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nmark('up')\nexchange() if me.rank else forever()",
        "-n",
        2,
        *options,
    )
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    run.signal(signal.SIGKILL)
    run.wait()
    eventually(world.is_clean, "everything is gone")


def test_a_crash_after_the_script_has_finished_is_no_success(world: World):
    run = world.run("import atexit\nif me.rank == 1: atexit.register(os._exit, 5)", "-n", 2)
    assert run.wait() == 1
    assert "worker-1 finished its script, but its process then exited with code 5" in run.err


def test_one_that_was_started_when_the_run_was_all_but_over_is_no_failure():
    """The coordinator ended the run before it had heard of it, and refused it."""
    codes = {"worker-0": 0, "worker-4": ENDED}
    members = {id: SimpleNamespace(look=lambda code=code: code) for id, code in codes.items()}
    end = End(True, 0, "every worker finished its script")
    assert _Launcher._with_late_deaths(SimpleNamespace(_lost=set(), _members=members), end) == end
