"""Every failure is named: who, at which step, doing what, since when; and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import time

import psutil
import pytest
from click.testing import CliRunner

from shoal import cli
from shoal.checkpoint.claims import claim
from shoal.errors import UsageError

from .launched import World, eventually, is_alive, status

# What ends a run that goes on after a loss too.
either_way = pytest.mark.parametrize("options", [(), ("--fail-fast",)], ids=["lasting", "fail-fast"])


def test_an_error_on_one_worker_ends_the_run_with_its_traceback(world: World):
    run = world.run(
        """
say(12, "COMPUTING", "piece 3")
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
    block = run.err[run.err.index("worker-1's last words:") :]
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
    assert run.err.index("Traceback") < run.err.index("the run ended")
    assert "Traceback" in run.log("worker-0")


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
    run = world.run("say(7, 'EXCHANGING')\nmark('up')\nexchange()", "-n", 2, "--fail-fast")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    eventually(lambda: [m["step"] for m in status(world)[0]["members"]] == [0, 7, 7], "a beat told the step")
    began = time.monotonic()
    os.kill(run.pid("worker-1"), signal.SIGKILL)
    assert run.wait() == 1
    assert time.monotonic() - began < 6
    assert re.search(r"worker-1 \(pid \d+\) was killed by SIGKILL at step 7 \(exchanging gradients\)", run.err)
    assert "out of memory" in run.err


def test_a_crash_in_native_code_shows_the_python_stack(world: World):
    world.starts_anew = True  # with the stack that users have: only its end is shown
    run = world.run("import ctypes\nif me.rank == 1: ctypes.string_at(0)\nexchange()", "-n", 2, "--fail-fast")
    assert run.wait() == 1
    assert "worker-1 (pid" in run.err
    assert "killed by SIGSEGV" in run.err
    assert "Fatal Python error: Segmentation fault" in run.err


def test_a_stopped_worker_is_lost_after_its_deadline(world: World):
    run = world.run("say(3, 'COMPUTING')\nmark('up')\nexchange()", "-n", 2, "--fail-fast", "--timeout", 1)
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
    say(9, "EXCHANGING", exchanging=True)
    exchange()
say(8, "TRAINING")
""",
        "-n",
        2,
        "--timeout",
        0.5,
        *options,
    )
    assert run.wait() == 1
    assert "worker-1 finished its script at step 8, but worker-0 has been waiting for it" in run.err
    assert "at step 9 (exchanging gradients)" in run.err


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
    path = world.customize(
        "import sys\nif 'worker-1' in sys.orig_argv: sys.stderr.write('no such disk\\n'); raise SystemExit(9)\n"
    )
    run = world.run("exchange()", "-n", 2, *options, PYTHONPATH=path)
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


def test_a_folder_of_checkpoints_is_one_runs_until_all_of_it_is_gone(world: World):
    folder = world.folder / "checkpoints"
    run = world.run("mark('up')\nforever()", "-n", 2, "--checkpoint", folder)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    words = ["run", "--backend", "jax", "--checkpoint", str(folder), str(world.folder / "train.py")]
    refused = CliRunner().invoke(cli.main, words, env=world.environ, catch_exceptions=False)
    assert refused.exit_code == 2
    (id,) = (path.name for path in (world.runtime / "shoal").iterdir())
    assert f"{folder} is in use: run {id} (pid {run.process.pid} on {platform.node()})" in refused.output
    run.signal(signal.SIGKILL)
    run.wait()
    with pytest.raises(UsageError, match="is in use"), claim(folder, "r2", print):
        pass  # the others may still write a last checkpoint
    killed = world.processes()
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):  # some leave by themselves
            process.kill()
    eventually(lambda: not any(map(is_alive, killed)), "all are gone")
    with claim(folder, "r2", print):
        shutil.rmtree(world.runtime / "shoal" / id)


def test_a_crash_after_the_script_has_finished_is_no_success(world: World):
    run = world.run("import atexit\nif me.rank == 1: atexit.register(os._exit, 5)", "-n", 2)
    assert run.wait() == 1
    assert "worker-1 finished its script, but its process then exited with code 5" in run.err


def test_a_script_whose_keras_came_past_shoal_is_no_success(world: World):
    run = world.run(
        "from types import SimpleNamespace as N\nsys.modules['keras'] = N(Model=object, __spec__='a zip')\nsys.exit()",
        "-n",
        2,
    )
    assert run.wait() == 1
    assert "each worker has trained by itself" in run.err
