"""A run outlives its workers: the lost are named, replaced as long as that helps, and the next chief takes over."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

from .launched import Launched, World, eventually, status

WAIT = "mark('up')\nuntil('go')\n"


def up(world: World, count: int) -> None:
    eventually(lambda: len(world.marks("up")) == count, f"{count} workers have been up")


def kill(run: Launched, id: str, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(run.pid(id), number)


def states(world: World) -> dict[object, object]:
    runs = status(world)
    return {m["id"]: m["state"] for m in runs[0]["members"]} if runs else {}  # type: ignore[attr-defined]


def test_a_killed_worker_is_named_and_replaced_and_the_run_ends_well(world: World):
    run = world.run("say(7, 'COMPUTING')\n" + WAIT, "-n", 2, "--max-restarts", 1)
    up(world, 2)
    kill(run, "worker-1")
    up(world, 3)
    assert states(world) == {
        "coordinator": "serving",
        "worker-0": "training",
        "worker-1": "lost",
        "worker-2": "joined",
    }
    world.tell("go")
    assert run.wait() == 0, run.err
    named = r"worker-1 \(pid \d+\) was killed by SIGKILL at step 7 \(computing\).*; going on with 1 worker\n"
    assert len(re.findall(named, run.err)) == 1
    assert "the run ended" not in run.err


def test_a_worker_is_not_replaced_when_its_restarts_are_used_up(world: World):
    run = world.run(WAIT, "-n", 2, "--max-restarts", 1)
    up(world, 2)
    kill(run, "worker-1")
    up(world, 3)
    kill(run, "worker-2")
    said = "worker-1 was replaced 1 times within an hour; the run goes on without it"
    eventually(lambda: said in run.err, "that it is not replaced again is said")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert len(world.marks("up")) == 3
    assert not list(world.folder.glob("state/shoal/logs/*/worker-3.log"))


def test_without_restarts_the_others_go_on_alone(world: World):
    run = world.run(WAIT, "-n", 3, "--max-restarts", 0)
    up(world, 3)
    kill(run, "worker-1")
    eventually(lambda: "going on with 2 workers" in run.err, "the loss is known")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert not list(world.folder.glob("state/shoal/logs/*/worker-3.log"))
    assert "replaced" not in run.err


def test_a_replacement_that_comes_too_late_does_no_harm(world: World):
    """The run is over before the one in the lost worker's place has joined."""
    (world.folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'worker-2' in sys.orig_argv:\n"
        "    while not os.path.exists(os.path.join(os.environ['SCENE'], 'mark-done-0')): time.sleep(0.01)\n"
    )
    run = world.run(WAIT + "mark('done')", "-n", 2, "--max-restarts", 1, PYTHONPATH=str(world.folder))
    up(world, 2)
    kill(run, "worker-1")
    eventually(lambda: "going on with 1 worker" in run.err, "the loss is known")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert "the run ended" not in run.err


def test_a_standby_waits_outside(world: World):
    run = world.run("mark('size', me.size)\nmark('rank', me.rank)\n" + WAIT, "-n", 2, "--standby", 1)
    up(world, 3)
    assert world.marks("size") == ["2", "2", "2"]
    assert world.marks("rank") == ["0", "1", "2"]
    assert states(world)["worker-2"] == "joined"
    world.tell("go")
    assert run.wait() == 0, run.err


def test_the_next_chief_takes_the_terminal_over(world: World):
    run = world.run(
        """
print(who.id, "begins")
mark("up")
while me.coordinator_link.stand()[0].chief != who: time.sleep(0.01)
print(who.id, "is the chief")
print("to standard error too", file=sys.stderr)
mark("chief")
until(f"{who.id}-go")
""",
        "-n",
        3,
        "--max-restarts",
        0,
    )
    up(world, 3)
    for number in range(2):
        eventually(lambda: len(world.marks("chief")) == number + 1, f"worker-{number} is the chief")  # noqa: B023
        kill(run, f"worker-{number}")
    eventually(lambda: len(world.marks("chief")) == 3, "the last is the chief")
    world.tell("worker-2-go")
    assert run.wait() == 0, run.err
    assert run.out == "worker-0 begins\n" + "".join(f"worker-{number} is the chief\n" for number in range(3))
    assert run.err.count("to standard error too") == 3
    for number in (1, 2):
        assert run.log(f"worker-{number}") == f"worker-{number} begins\n"


def test_an_error_on_one_worker_is_reported_and_the_others_go_on(world: World):
    run = world.run("say(12, 'COMPUTING')\nif who.number == 1: raise ValueError('bad pixel')\n" + WAIT, "-n", 2)
    up(world, 2)  # worker-0, and the one in the place of worker-1
    said = "worker-1 raised ValueError: bad pixel at step 12 (computing); going on with 1 worker"
    eventually(lambda: said in run.err, "the error is reported")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert run.err.count(said) == 1
    assert "bad pixel" in run.log("worker-1")
    assert world.marks("up") == ["", ""]


def test_an_error_that_comes_on_every_worker_ends_the_run_before_all_are_used_up(world: World):
    run = world.run("raise RuntimeError('no data')", "-n", 3)
    assert run.wait() == 1
    assert "raised RuntimeError: no data" in run.err
    assert run.err.count("the run ended") == 1


def test_a_crash_that_comes_again_where_it_came_before_ends_the_run(world: World):
    run = world.run(
        """
say(3, "COMPUTING")
mark("up")
until("crash")
if who.number: import ctypes; ctypes.string_at(0)
until("never")
""",
        "-n",
        2,
    )
    up(world, 2)
    world.tell("crash")
    assert run.wait() == 1
    assert "worker-1 and worker-2" in run.err
    assert "killed by SIGSEGV" in run.err
    assert "the run ended" in run.err


def test_a_stopped_worker_is_ended_so_that_it_can_not_wake_up_again(world: World):
    run = world.run(WAIT, "-n", 2, "--timeout", 1, "--max-restarts", 0)
    up(world, 2)
    stopped = run.pid("worker-1")
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: "its process is stopped" in run.err, "the silence is noticed")
    eventually(lambda: stopped not in [process.pid for process in world.processes()], "it was ended")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert re.search(r"worker-1 \(pid \d+\) was silent for \d\.\d s .*; going on with 1 worker", run.err)


def test_when_all_are_lost_the_run_ends(world: World):
    run = world.run(WAIT, "-n", 2, "--max-restarts", 0)
    up(world, 2)
    kill(run, "worker-0")
    eventually(lambda: "going on with 1 worker" in run.err, "the loss is known")
    kill(run, "worker-1")
    assert run.wait() == 1
    assert "the run ended" in run.err
    assert "killed by SIGKILL" in run.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_workers_and_replacements_alike(world: World, number: signal.Signals):
    run = world.run(WAIT, "-n", 2)
    up(world, 2)
    kill(run, "worker-1")
    up(world, 3)
    run.signal(number)
    assert run.wait() == 128 + number


def test_a_run_outlives_its_logs_and_its_folder(world: World):
    """Somebody tidies up while it runs. Workers that come later need both; those who are there meet in new sockets."""
    run = world.run(
        WAIT + "if who.number < 2: mark('met', me.worker_group.gather('a word', b'').members)",
        "-n",
        4,
        "--max-restarts",
        1,
    )
    up(world, 4)
    (logs,) = world.folder.glob("state/shoal/logs/*")
    shutil.rmtree(world.folder / "state")
    kill(run, "worker-3")
    up(world, 5)
    assert f"the folder of the logs was deleted; {logs} is made anew" in run.err
    assert (logs / "worker-4.log").exists()
    (folder,) = (world.runtime / "shoal").iterdir()
    shutil.rmtree(folder.parent.rename(world.folder / "gone"))  # at once: what is missing is soon put back
    eventually(lambda: f"{folder}, the run's folder, was deleted; it is made anew" in run.err, "that is noticed")
    kill(run, "worker-2")
    up(world, 6)
    eventually(lambda: states(world).get("worker-5") == "joined", "the coordinator is found again")
    assert folder.stat().st_mode & 0o777 == 0o700
    world.tell("go")
    assert run.wait() == 0, run.err
    assert world.marks("met") == ["('worker-0', 'worker-1')"] * 2
    assert "the coordinator" not in run.err, "it was not started again"
