"""A run that goes well, and how it is ended from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from .launched import World, eventually, status


def test_the_chief_has_the_terminal_and_the_others_have_logs(world: World):
    run = world.run("print('I am', me.rank, sys.argv[1:])", "-n", 2, arguments=("-n", "9", "--help"))
    assert run.wait() == 0
    assert run.out == "I am 0 ['-n', '9', '--help']\n"
    assert run.log("worker-1") == "I am 1 ['-n', '9', '--help']\n"
    opening = run.err.splitlines()[0]
    for fact in ("2 workers", "2 pieces", "jax", "logs in", "thread"):
        assert fact in opening
    assert "nothing was trained through Keras: each of the 2 workers ran the whole script by itself" in run.err


def test_verbose_shows_the_other_workers_lines_with_their_names(world: World):
    run = world.run("print('hello from', me.rank)\nprint('no newline', end='')", "-n", 2, "--verbose")
    assert run.wait() == 0
    assert "[worker-1] hello from 1\n[worker-1] no newline\n" in run.err
    assert "hello from 1" not in run.out


def test_a_script_runs_as_python_would_run_it(world: World):
    (world.folder / "neighbour.py").write_text("answer = 42")
    run = world.run(
        """
import neighbour
class Thing: pass
import pickle
assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
print(__name__, neighbour.answer, sys.argv[0] == __file__, sys.path[0] == os.path.dirname(__file__))
sys.exit(0)
"""
    )
    assert run.wait() == 0
    assert run.out == "__main__ 42 True True\n"
    assert run.err.count("\n") == 1, "one worker ends without a word"


def test_a_module_runs_as_python_m_would_run_it(world: World):
    package = world.folder / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])")
    run = world.shoal("run", "--backend", "jax", "-n", 1, "-m", "pack", "--b", "a")
    assert run.wait() == 0, run.err
    assert run.out == "__main__ pack ['--b', 'a']\n"


def test_workers_get_their_own_cores_and_threads(world: World):
    run = world.run(
        """
        import json
        from shoal import session

        start = sorted(os.sched_getaffinity(0))
        session.current().count(1)
        told = [os.environ[name] for name in ('NPROC', 'OMP_NUM_THREADS', 'KERAS_BACKEND', 'JAX_COMPILATION_CACHE_DIR')]
        mark('e', json.dumps([start, sorted(os.sched_getaffinity(0)), *told]))
        """,
        "-n",
        2,
        "--threads",
        1,
    )
    assert run.wait() == 0
    (start_a, cores_a, *rest_a), (start_b, cores_b, *rest_b) = map(json.loads, world.marks("e"))
    assert start_a == start_b == sorted(os.sched_getaffinity(0)), "until its first step a worker compiles: on all cores"
    assert len(cores_a) == len(cores_b) == 1
    assert cores_a != cores_b or len(os.sched_getaffinity(0)) == 1
    assert rest_a == rest_b
    assert rest_a[:3] == ["1", "1", "jax"]
    assert "-1t-" in rest_a[3]


def test_one_worker_is_left_as_plain_keras(world: World):
    run = world.run("print(len(os.sched_getaffinity(0)), os.environ.get('NPROC'))")
    assert run.wait() == 0
    assert run.out == f"{len(os.sched_getaffinity(0))} {os.environ.get('NPROC')}\n"


def test_what_a_worker_started_ends_with_it(world: World):
    run = world.run("import subprocess\nsubprocess.Popen(['sleep', '1000'])", "-n", 2)
    assert run.wait() == 0
    assert world.is_clean()


def test_a_post_reaches_everyone(world: World):
    run = world.run(
        """
from shoal.clock import Deadline
if me.rank == 0: me.coordinator_link.post("seed", b"1234")
name, value = me.coordinator_link.wait_post(("seed",), Deadline.after(20))
mark(name, value.decode())
""",
        "-n",
        2,
    )
    assert run.wait() == 0
    assert world.marks("seed") == ["1234", "1234"]


def test_one_interrupt_lets_the_script_end_in_order(world: World):
    run = world.run(
        """
try:
    mark("up"); forever()
except KeyboardInterrupt:
    mark("saved"); raise
""",
        "-n",
        2,
    )
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert len(world.marks("saved")) == 2
    assert "interrupted" in run.err
    assert "Traceback" not in run.err


def test_a_second_interrupt_ends_everything_at_once(world: World):
    run = world.run(
        "import signal\nsignal.signal(signal.SIGINT, lambda *_: mark('heard'))\nmark('up')\nforever()", "-n", 2
    )
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    began = time.monotonic()
    run.signal(signal.SIGINT)
    eventually(lambda: len(world.marks("heard")) == 2, "both heard the first")
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - began < 4


def test_a_termination_is_a_clean_end(world: World):
    run = world.run("mark('up')\nexchange()", "-n", 2)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert "interrupted (SIGTERM)" in run.err


def test_a_start_of_many_workers_can_be_ended(world: World):
    # The launcher takes its time for each process that it starts.
    slow = "import subprocess, sys, time\nif 'run' in sys.orig_argv:\n    start = subprocess.Popen.__init__\n"
    slow += "    subprocess.Popen.__init__ = lambda *args, **kwargs: (time.sleep(0.2), start(*args, **kwargs))[1]\n"
    logs = world.folder / "logs"
    run = world.run("exchange()", "-n", 40, "--logs", logs, "--checkpoint", "saved", PYTHONPATH=world.customize(slow))
    eventually(lambda: (logs / "worker-1.log").exists(), "the second worker is started")
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert not (logs / "worker-30.log").exists(), "the others were not started any more"
    assert "Traceback" not in run.err


def test_a_key_file_is_gone_when_its_run_is(world: World):
    token = world.folder / "ticket"
    words = ("-n", 2, "--address", "127.0.0.1:0", "--key-file", token)
    run = world.run("print(Path('ticket').exists())", *words)
    assert run.wait() == 0, run.err
    assert run.out == "True\n"
    assert not token.exists()


def test_the_coordinator_may_listen_on_a_port(world: World):
    run = world.run("print('ok')", "-n", 2, "--address", "127.0.0.1:0", "--transport", "tcp")
    assert run.wait() == 0
    assert run.out == "ok\n"


def test_an_address_in_use_is_found_before_anything_starts(world: World):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = world.run("mark('up')", "-n", 2, "--address", f"127.0.0.1:{taken.getsockname()[1]}")
        assert run.wait() == 2
    assert "is in use by another process" in run.err
    assert not world.marks("up")


def test_status_tells_who_trains_and_how_fast(world: World):
    run = world.run(
        "say(5, 'TRAINING')\nmark('up')\nwhile not Path('go').exists():\n    me.count(10, pieces=6); time.sleep(0.01)",
        "-n",
        2,
        "--pieces",
        4,
        "--timeout",
        1,
    )

    def members() -> list[dict[str, object]]:
        runs = status(world)
        return runs[0]["members"] if runs else []  # type: ignore[return-value]

    def counted() -> bool:
        return [bool(member["samples_per_second"]) for member in members()] == [False, True, True]

    eventually(counted, "the samples of both workers are counted")
    (facts,) = status(world)
    assert (facts["pieces"], facts["view"], facts["strategy"], facts["backend"]) == (6, 1, "allreduce", "jax")
    assert [(m["role"], m["id"], m["step"]) for m in members()] == [
        ("coordinator", "coordinator", 0),
        ("worker", "worker-0", 5),
        ("worker", "worker-1", 5),
    ]
    assert {m["pid"] for m in members()} == {run.pid(id) for id in ("coordinator", "worker-0", "worker-1")}
    (world.folder / "go").touch()
    assert run.wait() == 0
    assert status(world) == []


def test_the_launcher_imports_neither_keras_nor_numpy(world: World):
    run = world.shoal("run", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert run.wait() == 0
    imported = {line.rpartition("|")[2].strip() for line in run.err.splitlines()}
    assert "shoal.launch.local" in imported
    assert not imported & {"numpy", "keras", "jax", "tensorflow", "torch", "rich"}
    assert "Train SCRIPT" in run.out
