"""What the user asks for is checked, and completed, before anything starts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from shoal.config import Servers
from shoal.errors import UsageError
from shoal.launch.plan import Request, make_plan

CORES = (0, 1, 2, 3)
PS = {"workers": 2, "strategy": "ps", "servers": 2}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


@pytest.fixture
def environ(tmp_path):
    return {"KERAS_HOME": str(tmp_path / "keras"), "XDG_STATE_HOME": str(tmp_path), "PATH": "/bin"}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly these backends are installed."""

    def pretend(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in names else None)

    return pretend


def test_what_was_left_open_is_filled_in(script, environ):
    plan = make_plan(Request(workers=2, script=script, backend="jax"), environ, CORES)
    config = plan.config
    assert (config.threads, config.pieces, config.strategy, config.transport) == (2, None, "allreduce", "shm")
    assert config.deadlines.silence == 5.0
    assert config.logs.endswith(f"shoal/logs/{config.run}")
    assert [worker.id for worker in plan.workers] == ["worker-0", "worker-1"]


def test_standbys_are_started_beside_the_workers_and_on_cores_of_theirs(script, environ):
    plan = make_plan(Request(2, script, backend="jax", threads=1, standby=1), environ, CORES)
    assert (plan.config.workers, plan.config.least, plan.max_restarts) == (2, 1, 3)
    assert [(worker.id, worker.cores) for worker in plan.workers] == [
        ("worker-0", (0,)),
        ("worker-1", (1,)),
        ("worker-2", (2,)),
    ]


@pytest.mark.parametrize(
    ("workers", "threads", "expected"),
    [
        (2, None, [(0, 1), (2, 3)]),
        (3, None, [(0,), (1,), (2,)]),
        (6, None, [()] * 6),
        (2, 1, [(0,), (1,)]),
        (2, 3, [()] * 2),
        (1, 2, [(0, 1)]),
        (1, None, [()]),
    ],
)
def test_every_worker_has_its_own_cores_if_there_are_enough(script, environ, workers, threads, expected):
    plan = make_plan(Request(workers, script, backend="jax", threads=threads), environ, CORES)
    assert [worker.cores for worker in plan.workers] == expected
    confined = workers > 1 or threads is not None
    assert all(("OMP_NUM_THREADS" in worker.environment) == confined for worker in plan.workers)


def test_servers_are_started_as_workers_are_but_on_no_cores_of_their_own(script, environ):
    request = Request(2, script, backend="jax", threads=1, strategy="ps", servers=2)
    plan = make_plan(request, environ, CORES)
    assert [server.id for server in plan.servers] == ["server-0", "server-1"]
    assert [worker.id for worker in plan.workers] == ["worker-0", "worker-1"]
    assert all(server.environment == plan.workers[0].environment for server in plan.servers)
    assert all(server.cores == () for server in plan.servers)
    assert [worker.cores for worker in plan.workers] == [(0,), (1,)]


@pytest.mark.parametrize(("workers", "servers", "pinned"), [(2, 2, True), (2, 3, False), (3, 1, True), (1, 1, False)])
def test_nobody_is_pinned_where_workers_and_servers_need_more_than_the_cores(script, environ, workers, servers, pinned):
    threads = 1 if workers > 1 else None  # one worker gets a thread for each core
    request = Request(workers, script, backend="jax", threads=threads, strategy="ps", servers=servers)
    plan = make_plan(request, environ, CORES)
    assert all(bool(worker.cores) == pinned for worker in plan.workers)
    assert all("OMP_NUM_THREADS" in process.environment for process in (*plan.workers, *plan.servers))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"servers": 1}, Servers(1, 1, None)),
        ({"servers": 2}, Servers(2, 2, None)),
        ({"servers": 5}, Servers(5, 2, None)),
        ({"servers": 2, "replicas": 1}, Servers(2, 1, None)),
        ({"servers": 3, "replicas": 3}, Servers(3, 3, None)),
        ({"servers": 1, "staleness": "inf"}, Servers(1, 1, None)),
        ({"servers": 1, "staleness": "0"}, Servers(1, 1, 0)),
        ({"servers": 1, "staleness": "4"}, Servers(1, 1, 4)),
    ],
)
def test_parameter_servers_have_two_replicas_and_no_bound_unless_told_otherwise(script, environ, asked, expected):
    plan = make_plan(Request(2, script, backend="jax", strategy="ps", **asked), environ, CORES)
    assert (plan.config.strategy, plan.config.servers) == ("ps", expected)


@pytest.mark.parametrize(
    ("asked", "least", "restarts"),
    [({}, 1, 3), ({"workers": 3, "least": 2}, 2, 3), ({"standby": 1}, 1, 3), ({"fail_fast": True}, None, 0)],
)
def test_one_worker_with_servers_is_replaced_too(script, environ, asked, least, restarts):
    request = Request(**{"workers": 1, "script": script, "backend": "jax", "strategy": "ps", "servers": 1, **asked})
    plan = make_plan(request, environ, CORES)
    assert (plan.config.least, plan.max_restarts) == (least, restarts)


def test_synchronous_servers_may_come_with_checkpoints(script, environ, tmp_path):
    folder = str(tmp_path / "checkpoints")
    request = Request(2, script, backend="jax", strategy="ps", servers=1, staleness="0", checkpoint=folder)
    assert make_plan(request, environ, CORES).config.saving.folder == folder


def test_threads_reach_every_library(script, environ):
    (worker, _) = make_plan(Request(2, script, backend="tensorflow", threads=1), environ, CORES).workers
    for name in ("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        assert worker.environment[name] == "1"
    assert worker.environment["KERAS_BACKEND"] == "tensorflow"
    assert worker.environment["PATH"] == "/bin"
    assert worker.environment["MALLOC_ARENA_MAX"] == "1"
    assert "-1t-" in worker.environment["JAX_COMPILATION_CACHE_DIR"]  # a script may choose JAX itself


def test_compiled_programs_are_kept_apart_by_what_changes_them(script, environ):
    def cache(threads: int) -> str:
        request = Request(2, script, backend="jax", threads=threads)
        return make_plan(request, environ, CORES).workers[0].environment["JAX_COMPILATION_CACHE_DIR"]

    assert cache(1) != cache(2)
    environ["JAX_COMPILATION_CACHE_DIR"] = "/mine"
    assert cache(1) == "/mine"


def test_the_backend_is_chosen_as_keras_would(script, environ, tmp_path, installed):
    def chosen(**more: str) -> str:
        return make_plan(Request(1, script), {**environ, **more}, CORES).config.backend

    installed("jax", "torch", "tensorflow")
    assert chosen() == "tensorflow"
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "keras.json").write_text(json.dumps({"backend": "torch"}))
    assert chosen() == "torch"
    assert chosen(KERAS_BACKEND="jax") == "jax"
    (tmp_path / "keras" / "keras.json").write_text("not json")
    installed("torch", "jax")
    assert chosen() == "jax"


def test_a_backend_that_is_not_installed_says_how_to_get_it(script, environ, installed):
    installed()
    with pytest.raises(UsageError, match=r"jax \(from --backend\) is not installed.*pip install shoal\[jax\]"):
        make_plan(Request(1, script, backend="jax"), environ, CORES)
    with pytest.raises(UsageError, match="no Keras backend is installed"):
        make_plan(Request(1, script), environ, CORES)


def test_a_timeout_sets_both_deadlines(script, environ):
    deadlines = make_plan(Request(1, script, backend="jax", timeout=2.0), environ, CORES).config.deadlines
    assert (deadlines.silence, deadlines.stall) == (2.0, 120.0)


def test_modules_are_found_without_being_imported(environ, tmp_path, monkeypatch):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "inner.py").touch()
    monkeypatch.chdir(tmp_path)

    def script(name: str) -> str:
        return make_plan(Request(1, name, is_module=True, backend="jax"), environ, CORES).config.script

    assert script("pack.inner") == "pack.inner"
    with pytest.raises(UsageError, match="package without a __main__"):
        script("pack")
    for missing in ("pack.other", "nothing.there", "", "pack..inner"):
        with pytest.raises(UsageError, match="there is no module"):
            script(missing)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"workers": 0}, "at least 1 worker"),
        ({"workers": -2}, "at least 1 worker"),
        ({"workers": 2, "least": 3}, "-n 3:2: the least number of workers"),
        ({"workers": 2, "least": 0}, "-n 0:2: the least number of workers"),
        ({"max_restarts": -1}, "--max-restarts -1: expected 0 or more"),
        ({"workers": 2, "standby": -1}, "--standby -1: expected 0 or more"),
        ({"standby": 1}, "--standby needs a run that goes on after a loss"),
        ({"workers": 2, "fail_fast": True, "standby": 1}, "--standby needs a run that goes on after a loss"),
        ({"threads": 0}, "at least 1 thread"),
        ({"timeout": 0.0}, "more than 0"),
        ({"timeout": float("nan")}, "more than 0"),
        ({"workers": 4, "pieces": 3}, "--pieces 3 is too few for 4 workers"),
        ({"strategy": "magic"}, "there is no such strategy; there is allreduce"),
        ({"strategy": "ps"}, "needs at least one: --servers 1"),
        ({"strategy": "ps", "servers": 0}, "needs at least one: --servers 1"),
        ({"servers": -1}, "--servers -1: expected 0 or more servers"),
        ({"servers": 2}, r"--servers 2 is for training with parameter servers: add --strategy ps\.$"),
        ({"staleness": "4"}, "--staleness 4 is for .* parameter servers: add --strategy ps --servers 1"),
        ({"replicas": 1}, "--replicas 1 is for .* parameter servers: add --strategy ps --servers 1"),
        ({**PS, "replicas": 0}, "--replicas 0: expected at least 1"),
        ({**PS, "replicas": 3}, "--replicas 3 is too many for --servers 2.*--replicas 2 or fewer, or --servers 3"),
        ({**PS, "staleness": "-1"}, "--staleness -1: expected 0, a number of updates, or inf"),
        ({**PS, "staleness": "1.5"}, "--staleness 1.5: expected 0, a number of updates, or inf"),
        ({**PS, "staleness": "much"}, "--staleness much: expected 0, a number of updates, or inf"),
        ({**PS, "address": "127.0.0.1:0"}, "--address and --key-file are for workers on other hosts"),
        ({**PS, "key_file": "ticket"}, "--address and --key-file are for workers on other hosts"),
        ({"transport": "pigeon"}, "there is no such transport; there is shm, tcp"),
        ({"backend": "theano"}, "can't train on the backend 'theano'"),
        ({"script": "/nowhere/train.py"}, "there is no script /nowhere/train.py"),
        ({"script": "/"}, "folder without a __main__.py"),
    ],
)
def test_wrong_input_is_named_with_what_would_be_right(script, environ, wrong, problem):
    with pytest.raises(UsageError, match=problem):
        make_plan(Request(**{"workers": 1, "script": script, "backend": "jax", **wrong}), environ, CORES)


@pytest.mark.parametrize(
    ("text", "preloads"),
    [
        ("import keras\n", True),
        ("import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n", False),
        ("import os\nfolder = os.environ['HOME']\nassert os.environ['HOME'] == folder\n", True),
        ("import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\n", False),
        ("import os\ndel os.environ['JAX_PLATFORMS']\n", False),
        ("from dotenv import load_dotenv\nload_dotenv()\n", False),
    ],
)
def test_keras_is_imported_before_the_script_unless_that_may_change_its_environment(
    script, environ, monkeypatch, tmp_path, text, preloads
):
    Path(script).write_text(text)
    assert make_plan(Request(2, script, backend="jax"), environ, CORES).preloads == preloads
    monkeypatch.chdir(tmp_path)
    assert make_plan(Request(2, "train", is_module=True, backend="jax"), environ, CORES).preloads == preloads
