"""What the user asks for is checked, and completed, before anything starts."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoint.scene import write

from shoal.cluster.process_limits import check_processes
from shoal.config import Devices, Saving, Servers
from shoal.errors import UsageError
from shoal.launch import environment
from shoal.launch.devices.inventory import DeviceKind, Inventory
from shoal.launch.plan import THIS_HOST, make_plan
from shoal.launch.request import LaunchRequest

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
    plan = make_plan(LaunchRequest(workers=2, script=script, backend="jax"), environ, CORES)
    config = plan.config
    assert (config.threads, config.pieces, config.strategy, config.transport) == (2, None, "allreduce", "auto")
    assert config.deadlines.silence == 5.0
    assert config.logs.endswith(f"shoal/logs/{config.run}")
    assert [worker.id for worker in plan.workers] == ["worker-0", "worker-1"]


def test_a_plan_knows_the_hosts_of_its_members_and_where_it_pays_to_import_keras_once(script, environ):
    plan = make_plan(LaunchRequest(2, script, backend="jax"), environ, CORES)
    assert (plan.hosts, plan.members) == ((THIS_HOST,), plan.workers)
    assert plan.preload(THIS_HOST) == plan.workers[0].environment
    apart = replace(plan, workers=(plan.workers[0], replace(plan.workers[1], host="another")))
    assert apart.hosts == (THIS_HOST, "another")
    assert (apart.preload(THIS_HOST), apart.preload("another")) == (None, None), "one is no crowd"
    assert replace(plan, preloads=False).preload(THIS_HOST) is None


@pytest.mark.parametrize(
    ("compress", "strategy", "answer"),
    [
        ("zip", "allreduce", "--compress zip: there is no codec of that name; there is auto, bf16, int8"),
        ("topk:1.5", "allreduce", "--compress topk:1.5: expected the part of all numbers that is sent"),
        ("bf16", "pipeline", "--compress bf16: what the stages of a pipeline send each other travels as it is"),
    ],
)
def test_codecs_that_make_no_sense_are_refused_before_anything_starts(script, environ, compress, strategy, answer):
    with pytest.raises(UsageError, match=answer):
        make_plan(LaunchRequest(2, script, backend="jax", compress=compress, strategy=strategy), environ, CORES)


def test_standbys_are_started_beside_the_workers_and_on_cores_of_theirs(script, environ):
    plan = make_plan(LaunchRequest(2, script, backend="jax", threads=1, standby=1), environ, CORES)
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
    plan = make_plan(LaunchRequest(workers, script, backend="jax", threads=threads), environ, CORES)
    assert [worker.cores for worker in plan.workers] == expected
    confined = workers > 1 or threads is not None
    assert all(("OMP_NUM_THREADS" in worker.environment) == confined for worker in plan.workers)


def test_servers_are_started_as_workers_are_but_on_no_cores_of_their_own(script, environ):
    request = LaunchRequest(2, script, backend="jax", threads=1, strategy="ps", servers=2)
    plan = make_plan(request, environ, CORES)
    assert [server.id for server in plan.servers] == ["server-0", "server-1"]
    assert [worker.id for worker in plan.workers] == ["worker-0", "worker-1"]
    assert all(server.environment == plan.workers[0].environment for server in plan.servers)
    assert all(server.cores == () for server in plan.servers)
    assert [worker.cores for worker in plan.workers] == [(0,), (1,)]


@pytest.mark.parametrize(("workers", "servers", "pinned"), [(2, 2, True), (2, 3, False), (3, 1, True), (1, 1, False)])
def test_nobody_is_pinned_where_workers_and_servers_need_more_than_the_cores(script, environ, workers, servers, pinned):
    threads = 1 if workers > 1 else None  # one worker gets a thread for each core
    request = LaunchRequest(workers, script, backend="jax", threads=threads, strategy="ps", servers=servers)
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
    plan = make_plan(LaunchRequest(2, script, backend="jax", strategy="ps", **asked), environ, CORES)
    assert (plan.config.strategy, plan.config.servers) == ("ps", expected)


@pytest.mark.parametrize(
    ("asked", "least", "restarts"),
    [({}, 1, 3), ({"workers": 3, "least": 2}, 2, 3), ({"standby": 1}, 1, 3), ({"fail_fast": True}, None, 0)],
)
def test_one_worker_with_servers_is_replaced_too(script, environ, asked, least, restarts):
    request = LaunchRequest(
        **{"workers": 1, "script": script, "backend": "jax", "strategy": "ps", "servers": 1, **asked}
    )
    plan = make_plan(request, environ, CORES)
    assert (plan.config.least, plan.max_restarts) == (least, restarts)


def test_synchronous_servers_may_come_with_checkpoints(script, environ, tmp_path):
    folder = str(tmp_path / "checkpoints")
    request = LaunchRequest(2, script, backend="jax", strategy="ps", servers=1, staleness="0", checkpoint=folder)
    assert make_plan(request, environ, CORES).config.saving.folder == folder


def test_threads_reach_every_library(script, environ):
    (worker, _) = make_plan(LaunchRequest(2, script, backend="tensorflow", threads=1), environ, CORES).workers
    for name in ("NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        assert worker.environment[name] == "1"
    assert worker.environment["KERAS_BACKEND"] == "tensorflow"
    assert worker.environment["PATH"] == "/bin"
    assert worker.environment["MALLOC_ARENA_MAX"] == "1"
    assert "-1t-" in worker.environment["JAX_COMPILATION_CACHE_DIR"]  # a script may choose JAX itself


def test_compiled_programs_are_kept_apart_by_what_changes_them(script, environ):
    def cache(threads: int) -> str:
        request = LaunchRequest(2, script, backend="jax", threads=threads)
        return make_plan(request, environ, CORES).workers[0].environment["JAX_COMPILATION_CACHE_DIR"]

    assert cache(1) != cache(2)
    environ["JAX_COMPILATION_CACHE_DIR"] = "/mine"
    assert cache(1) == "/mine"


def test_the_backend_is_chosen_as_keras_would(script, environ, tmp_path, installed):
    def chosen(**more: str) -> str:
        return make_plan(LaunchRequest(1, script), {**environ, **more}, CORES).config.backend

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
        make_plan(LaunchRequest(1, script, backend="jax"), environ, CORES)
    with pytest.raises(UsageError, match="no Keras backend is installed"):
        make_plan(LaunchRequest(1, script), environ, CORES)


def test_hosts_that_are_to_wait_for_each_other_have_workers_that_wait_as_long(script, environ):
    wait, first = (LaunchRequest(1, script, backend="jax", on_split=word, timeout=2.0) for word in ("wait", "first"))
    assert make_plan(wait, environ, CORES).config.deadlines.orphaned == 300.0
    assert make_plan(first, environ, CORES).config.deadlines.orphaned == 20.0


def test_a_timeout_sets_both_deadlines(script, environ):
    deadlines = make_plan(LaunchRequest(1, script, backend="jax", timeout=2.0), environ, CORES).config.deadlines
    assert (deadlines.silence, deadlines.stall) == (2.0, 120.0)


def test_modules_are_found_without_being_imported(environ, tmp_path, monkeypatch):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "inner.py").touch()
    monkeypatch.chdir(tmp_path)

    def script(name: str) -> str:
        return make_plan(LaunchRequest(1, name, is_module=True, backend="jax"), environ, CORES).config.script

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
        ({"strategy": "pipeline", "workers": 2, "stages": 3}, "3 stages needs at least 3 workers; -n 2 was asked for"),
        ({"strategy": "pipeline", "workers": 1}, "2 stages needs at least 2 workers"),
        ({"strategy": "pipeline", "workers": 2, "stages": 1}, "at least 2 stages"),
        ({"strategy": "pipeline", "workers": 2, "servers": 1}, "--servers 1 is for training with parameter servers"),
        (
            {"strategy": "pipeline", "workers": 2, "compress": "bf16"},
            "--compress bf16: what the stages of a pipeline send each other travels as it is",
        ),
        ({"speeds": "1,0.5", "workers": 2}, "--speeds 1,0.5 is what a pipeline is cut for; allreduce measures"),
        *(
            (
                {"strategy": "pipeline", "workers": 2, "speeds": text},
                f"--speeds {text}: expected 2 numbers above 0, one for each worker, as 1,1,0.5",
            )
            for text in ("1", "1,1,1", "1,0", "1,-2", "1,fast", "1,inf", "nan,1", "")
        ),
        ({"stages": 2}, "--stages 2 goes with --strategy pipeline"),
        ({"every": 5}, "--every 5 goes with --strategy local, not with allreduce"),
        ({"strategy": "local", "every": 0}, "--every 0: expected a number of steps, at least 1"),
        ({"strategy": "local", "replicas": 0}, "--replicas 0: expected at least 1"),
        ({"strategy": "local", "workers": 3, "replicas": 2}, "--replicas 2 is too few for 3 workers"),
        ({"strategy": "local", "pieces": 4}, "--pieces 4: with --strategy local .* Say how many with --replicas"),
        ({"strategy": "local", "servers": 1}, "--servers 1 is for training with parameter servers"),
        ({"strategy": "local", "compress": "auto"}, "--compress auto measures what pays from step to step"),
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
        ({**PS, "address": "127.0.0.1:0"}, "--address and --key-file are for workers that join"),
        ({**PS, "key_file": "ticket"}, "--address and --key-file are for workers that join"),
        ({"workers": 2, "address": "2001:db8::1:4321"}, r"an IPv6 address stands in brackets"),
        ({"workers": 2, "address": "no.such.host.invalid:1"}, "there is no host 'no.such.host.invalid'"),
        (
            {"workers": 2, "fail_fast": True, "address": "127.0.0.1:0", "key_file": "ticket"},
            "nobody can join a run that was started with --fail-fast",
        ),
        (
            {"workers": 2, "address": "127.0.0.1:0", "key_file": "/dev/null"},
            "--key-file /dev/null: there is such a file already, .*Remove it, or name another",
        ),
        (
            {"workers": 2, "address": "127.0.0.1:0", "key_file": "/nowhere/ticket"},
            "--key-file /nowhere/ticket: there is no folder /nowhere",
        ),
        ({"trace": "/nowhere/trace.json"}, "--trace /nowhere/trace.json: there is no folder /nowhere"),
        ({"trace": "trace.json", "record": False}, "--trace trace.json is made of the record .*leave --no-record out"),
        ({"profile": "10:5"}, "--profile 10:5: expected at least 1 and at most 100 steps"),
        ({"trace": "/dev"}, "--trace /dev is a folder; name a file in it, such as /dev/trace.json"),
        ({"workers": 100_000}, "-n 100000: .*100,000 processes.* 4 cores .*at most 128"),
        ({"workers": 2, "standby": 1000}, "1,002 processes"),
        ({**PS, "servers": 1000}, "1,002 processes"),
        (
            {"workers": 2, "address": "10.0.0.1:0", "key_file": "ticket", "transport": "shm"},
            "workers on several hosts share no memory: leave --transport shm out",
        ),
        ({"transport": "pigeon"}, "there is no such transport; there is auto, shm, tcp"),
        ({"backend": "theano"}, "can't train on the backend 'theano'"),
        ({"script": "/nowhere/train.py"}, "there is no script /nowhere/train.py"),
        ({"script": "/"}, "folder without a __main__.py"),
    ],
)
def test_wrong_input_is_named_with_what_would_be_right(script, environ, wrong, problem):
    with pytest.raises(UsageError, match=problem):
        make_plan(LaunchRequest(**{"workers": 1, "script": script, "backend": "jax", **wrong}), environ, CORES)


@pytest.mark.parametrize(
    ("processes", "cores", "gigabytes", "fits"),
    [
        (64, 2, 64, True),
        (65, 2, 64, False),
        (17, 4, 2, False),  # 128 MiB for each
        (16, 4, 2, True),
        (8, 4, 0, True),  # twice as many as cores are started, whatever the system says of its memory
        (9, 4, 0, False),
    ],
)
def test_no_more_processes_are_started_than_a_machine_can_bear(processes, cores, gigabytes, fits):
    with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="expected at most"):
        check_processes("-n", processes, cores, lambda: gigabytes << 30)


def test_the_scripts_own_choice_of_a_backend_counts_before_the_environments(script, environ, installed):
    installed("tensorflow", "jax", "torch")
    Path(script).write_text("import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n")
    plan = make_plan(LaunchRequest(2, script), {**environ, "KERAS_BACKEND": "jax"}, CORES)
    assert plan.config.backend == "torch"
    assert plan.preloads
    assert plan.workers[0].environment["KERAS_BACKEND"] == "torch"
    with pytest.raises(UsageError, match=r"--backend jax, but the script sets KERAS_BACKEND to torch \(train.py:2\)"):
        make_plan(LaunchRequest(2, script, backend="jax"), environ, CORES)
    assert make_plan(LaunchRequest(2, script, backend="torch"), environ, CORES).config.backend == "torch"


def test_a_script_that_may_still_choose_its_backend_finds_its_environment_as_it_was(script, environ, installed):
    installed("tensorflow", "jax", "torch")
    Path(script).write_text("import os, sys\nos.environ['KERAS_BACKEND'] = sys.argv[1]\nimport keras\n")
    plan = make_plan(LaunchRequest(2, script), environ, CORES)
    assert not plan.preloads
    assert "KERAS_BACKEND" not in plan.workers[0].environment
    told = make_plan(LaunchRequest(2, script, backend="jax"), environ, CORES).workers[0].environment
    assert told["KERAS_BACKEND"] == "jax"


# Checkpoints and whose they are.


def saving(script: str, environ: dict[str, str], **asked: object) -> Saving:
    plan = make_plan(LaunchRequest(1, script, backend="jax", **asked), environ, CORES, "r-new")
    assert plan.config.saving is not None
    return plan.config.saving


def test_a_run_belongs_to_the_training_that_it_goes_on_with(script, environ, tmp_path, capsys):
    folder = tmp_path / "checkpoints"
    assert saving(script, environ, checkpoint=str(folder)).training is None, "it is the first"
    assert saving(script, environ, checkpoint=str(folder), resume="auto").training is None, "there is none yet"
    write(folder, 10, run="r-first")
    assert saving(script, environ, checkpoint=str(folder), resume="auto").training == "r-first"
    write(folder, 20, run="r-second", training="r-first")
    found = saving(script, environ, checkpoint=str(folder), resume="auto")
    assert (found.run, found.training) == ("r-new", "r-first")
    assert re.search(r"going on from .*step-000000020, which run r-second wrote at \d\d\d\d-", capsys.readouterr().err)


def test_a_folder_with_checkpoints_of_two_trainings_is_refused_and_both_are_named(script, environ, tmp_path):
    folder = tmp_path / "checkpoints"
    write(folder, 10, run="r-one")
    path = write(folder, 20, run="r-two")
    both = (
        "holds checkpoints of several trainings: of run r-two step-000000020, of run r-one step-000000010. "
        "Name the one to go on from with --resume PATH, and another folder with --checkpoint."
    )
    with pytest.raises(UsageError, match=re.escape(both)):
        saving(script, environ, checkpoint=str(folder), resume="auto")
    with pytest.raises(UsageError, match=re.escape(both)):
        saving(script, environ, checkpoint=str(folder), resume=str(path))
    assert saving(script, environ, checkpoint=str(tmp_path / "new"), resume=str(path)).training == "r-two"


def test_a_run_that_goes_on_does_not_write_among_another_trainings_checkpoints(script, environ, tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    path = write(mine, 10, run="r-mine")
    write(others, 10, run="r-other")
    with pytest.raises(
        UsageError, match=r"others holds checkpoints of another training, of run r-other: step-000000010"
    ):
        saving(script, environ, checkpoint=str(others), resume=str(path))


def test_devices_are_divided_among_workers_and_each_has_its_own_environment(script, environ):
    gpus = Inventory(DeviceKind.CUDA, ("0", "1", "2", "3"))
    plan = make_plan(LaunchRequest(2, script, backend="torch"), environ, CORES, inventory=gpus)
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in plan.workers] == ["0,1", "2,3"]
    assert plan.config.devices == Devices(
        "4 GPU · worker-0: 0,1 · worker-1: 2,3", 2, {"worker-0": ("0", "1"), "worker-1": ("2", "3")}
    )
    assert plan.config.mesh is None  # PyTorch has none
    auto = make_plan(LaunchRequest(1, script, backend="torch", auto=True), environ, CORES, inventory=gpus)
    assert len(auto.workers) == 4
    servers = make_plan(LaunchRequest(script=script, backend="torch", **PS), environ, CORES, inventory=gpus).servers
    assert all(server.environment["CUDA_VISIBLE_DEVICES"] == "" for server in servers)


def test_several_devices_in_a_worker_are_a_mesh_on_jax(script, environ):
    plan = make_plan(LaunchRequest(1, script, backend="jax", devices_per_worker=4), environ, CORES)
    assert plan.config.mesh == "batch=4"
    assert not plan.config.is_plain
    assert plan.workers[0].environment["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    asked = LaunchRequest(2, script, backend="jax", devices_per_worker=4, mesh="model=2,fsdp")
    assert make_plan(asked, environ, CORES).config.mesh == "batch=2,model=2,fsdp"
    assert make_plan(LaunchRequest(2, script, backend="jax"), environ, CORES).config.mesh is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "torch", "mesh": "batch=2"}, "needs JAX: on torch"),
        ({"backend": "jax", "mesh": "batch=2"}, "has 1 device"),
        ({"backend": "jax", "mesh": "rows=2"}, "expected axes and their sizes"),
        ({"backend": "jax", "mesh": "batch=1", "strategy": "ps", "servers": 1}, "for --strategy allreduce"),
    ],
)
def test_a_mesh_that_can_not_be_is_refused_before_anything_starts(script, environ, options, says):
    with pytest.raises(UsageError, match=says):
        make_plan(LaunchRequest(2, script, **options), environ, CORES)


def test_a_cluster_of_tensorflow_that_is_left_over_is_named_and_kept_from_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    script = str(tmp_path / "train.py")
    left = {**os.environ, "TF_CONFIG": "{}"}
    plan = make_plan(LaunchRequest(workers=2, script=script, backend="jax"), left, (0, 1))
    assert "TF_CONFIG" not in plan.workers[0].environment
    assert environment.left_over(left).startswith("TF_CONFIG is set; workers do not see it")
    alone = make_plan(LaunchRequest(workers=1, script=script, backend="jax"), left, (0, 1))
    assert alone.workers[0].environment["TF_CONFIG"] == "{}", "one worker is plain Keras"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"memory": "2G"}, "--memory 2G is what --strategy auto may use"),
        ({"strategy": "auto", "memory": "lots"}, "--memory lots: expected an amount of memory, such as 800M"),
        ({"strategy": "auto", "memory": "0G"}, "--memory 0G: expected"),
        ({"strategy": "auto", "sliced": True}, "--sliced goes with --strategy allreduce, not with auto"),
        ({"strategy": "pipeline", "sliced": True}, "--sliced goes with --strategy allreduce, not with pipeline"),
        (
            {"strategy": "auto", "compress": "bf16"},
            "--strategy auto chooses among plans whose numbers travel as they are",
        ),
        ({"strategy": "auto", "stages": 2}, "--stages 2 goes with --strategy pipeline, not with auto"),
    ],
    ids=str,
)
def test_what_goes_with_another_strategy_is_refused(script, environ, asked, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        make_plan(LaunchRequest(2, script, backend="torch", **asked), environ, CORES)


@pytest.mark.parametrize(("text", "size"), [("2G", 2 * 10**9), ("1.5GiB", 3 << 29), ("800mb", 8 * 10**8), ("123", 123)])
def test_memory_is_said_as_people_write_it(script, environ, text, size):
    request = LaunchRequest(2, script, backend="torch", strategy="auto", memory=text)
    assert make_plan(request, environ, CORES).config.memory == size


def test_a_worker_of_two_processes_has_the_mesh_of_each(script, environ):
    asked = LaunchRequest(2, script, backend="jax", devices_per_worker=2, mesh_hosts=2)
    config = make_plan(asked, environ, CORES).config
    assert (config.mesh, config.mesh_hosts) == ("batch=2", 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "jax", "mesh_hosts": 0}, "at least 1"),
        ({"backend": "torch", "mesh_hosts": 2}, "needs JAX"),
        ({"backend": "jax", "mesh_hosts": 2, "strategy": "pipeline"}, "not for --strategy pipeline"),
        ({"backend": "jax", "mesh_hosts": 2, "sliced": True}, "not for sliced updates"),
        ({"backend": "jax", "mesh_hosts": 2, "mesh": "batch=1"}, "devices of one process"),
    ],
)
def test_processes_of_a_worker_that_can_not_be_are_refused(script, environ, options, says):
    with pytest.raises(UsageError, match=says):
        make_plan(LaunchRequest(2, script, **options), environ, CORES)
