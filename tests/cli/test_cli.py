from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from shoal import cli
from shoal.cli.status import _table
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.config import Servers
from shoal.launch import local
from shoal.launch.local import Ended
from shoal.launch.plan import LaunchPlan


@pytest.fixture
def shoal(tmp_path, monkeypatch):
    """`shoal …` in this process. What would be launched is kept instead."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    (tmp_path / "train.py").touch()
    plans: list[LaunchPlan] = []
    monkeypatch.setattr(local, "launch", lambda plan, environ, claimed: plans.append(plan) or Ended(False, 5, ""))

    def shoal(*words: str) -> Result:
        result = CliRunner().invoke(cli.main, words)
        result.plans = plans
        return result

    return shoal


def test_what_follows_the_script_is_the_scripts(shoal):
    result = shoal("run", "-n", "3", "--pieces", "6", "train.py", "-n", "9", "--help", "--", "--pieces", "1")
    (plan,) = result.plans
    assert (plan.config.workers, plan.config.pieces) == (3, 6)
    assert plan.config.arguments == ("-n", "9", "--help", "--", "--pieces", "1")
    assert result.exit_code == 5


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ("train.py", "-n", "2"),
            "shoal: -n 2 came after train.py, so it is the script's own. If it was meant",
        ),
        (
            ("train.py", "--epochs", "3", "--backend=jax", "--fail-fast", "x"),
            "run --backend=jax --fail-fast train.py`",
        ),
        (("-m", "json.tool", "-n", "2"), "`shoal run -n 2 -m json.tool`"),
        (("-n", "2", "train.py", "-n", "9"), ""),  # it was said
        (("train.py", "--", "-n", "9"), ""),
        (("train.py", "--epochs", "3", "-m", "fast"), ""),
        (("own.py", "-n", "9"), ""),  # the script has such an option
    ],
)
def test_options_that_came_after_the_script_are_hinted_at(shoal, tmp_path, words, hint):
    (tmp_path / "own.py").write_text("parser.add_argument('-n', type=int)")
    result = shoal("run", *words)
    assert len(result.plans) == 1, result.output
    assert hint in result.stderr
    assert bool(hint) == ("came after" in result.stderr)


def test_parameter_servers_are_asked_for_by_number(shoal):
    words = ("-n", "4", "--servers", "2", "--strategy", "ps", "--staleness", "3", "--replicas", "1")
    (plan,) = shoal("run", *words, "train.py").plans
    assert (len(plan.workers), len(plan.servers)) == (4, 2)
    assert plan.config.servers == Servers(count=2, replicas=1, staleness=3)


def test_a_module_takes_the_rest_as_its_arguments(shoal):
    (plan,) = shoal("run", "-m", "json.tool", "--indent", "2").plans
    assert (plan.config.script, plan.config.is_module, plan.config.arguments) == ("json.tool", True, ("--indent", "2"))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "name a script to train"),
        (("nowhere.py",), "there is no script nowhere.py"),
        (("-m", "no.such.module"), "there is no module no.such.module"),
        (("-n", "0", "train.py"), "a run needs at least 1 worker"),
        (("--hosts", "gpu-9.invalid:2", "train.py"), "this host finds no way to gpu-9.invalid. Correct the name"),
        (("-n", "many", "train.py"), "'many' is neither a number of workers, nor a range such as 2:6, nor auto"),
        (("-n", "2:", "train.py"), "'2:' is neither a number of workers, nor a range such as 2:6, nor auto"),
        (("-n", ":2", "train.py"), "':2' is neither a number of workers, nor a range such as 2:6, nor auto"),
        (("-n", "1:2:3", "train.py"), "'1:2:3' is neither a number of workers, nor a range such as 2:6, nor auto"),
        (("-n", "3:2", "train.py"), "-n 3:2: the least number of workers is at least 1 and at most the most"),
        (("-n", "0:2", "train.py"), "-n 0:2: the least number of workers is at least 1 and at most the most"),
        (("-n", "2", "--max-restarts", "-1", "train.py"), "--max-restarts -1: expected 0 or more"),
        (("-n", "2", "--fail-fast", "--standby", "1", "train.py"), "--standby needs a run that goes on after a loss"),
        (("-n", "4", "--pieces", "3", "train.py"), "--pieces 3 is too few for 4 workers"),
        (("--strategy", "magic", "train.py"), "there is no such strategy"),
        (("--strategy", "ps", "train.py"), "needs at least one: --servers 1"),
        (("--servers", "2", "train.py"), "add --strategy ps"),
        (("--strategy", "ps", "--servers", "2", "--staleness", "-1", "train.py"), "--staleness -1: expected 0"),
        (("--strategy", "ps", "--servers", "2", "--replicas", "3", "train.py"), "--replicas 3 is too many"),
        (("--backend", "theano", "train.py"), "can't train on the backend 'theano'"),
        (("--frobnicate", "train.py"), "No such option"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2(shoal, words, problem):
    result = shoal("run", *words)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stdout == ""
    assert not result.plans


def test_help_shows_the_options_and_an_example_of_each_default(shoal):
    text = shoal("run", "--help").output
    for option in ("-n", "--backend", "--pieces", "--threads", "--transport", "--timeout", "--logs", "--verbose"):
        assert option in text
    for option in ("--max-restarts", "--standby", "--fail-fast", "N|MIN:MAX", "--servers", "--staleness", "--replicas"):
        assert option in text


@pytest.mark.parametrize(
    ("words", "least", "most", "restarts"),
    [
        (("-n", "4"), 1, 4, 3),
        (("-n", "2:6"), 2, 6, 3),
        (("-n", "3:3", "--max-restarts", "0"), 3, 3, 0),
        (("-n", "4", "--fail-fast"), None, 4, 0),
        (("-n", "2:4", "--fail-fast"), None, 4, 0),
        ((), None, 1, 0),  # one worker is plain Keras: nobody takes over
    ],
)
def test_a_run_goes_on_with_its_least_number_of_workers_unless_it_is_to_fail_fast(shoal, words, least, most, restarts):
    (plan,) = shoal("run", *words, "train.py").plans
    assert (plan.config.least, plan.config.workers, plan.max_restarts) == (least, most, restarts)
    assert len(plan.workers) == most


def test_no_run_is_scaled_beyond_what_the_machine_can_bear(shoal):
    result = shoal("scale", "100000")
    assert result.exit_code == 2
    assert "shoal scale 100000: that would start 100,000 processes" in result.stderr


def test_status_without_runs_says_so(shoal):
    assert "No runs on this machine" in shoal("status").output
    assert json.loads(shoal("status", "--json").output) == []


def test_the_version_is_the_packages(shoal):
    assert shoal("--version").output.startswith("shoal, version 0.")


def test_status_shows_a_table_that_fits_a_terminal():
    members = (
        MemberStatus("coordinator", "coordinator", 4194304, "vm", "serving", 0, "", "", 0.0, 0.0),
        MemberStatus(
            "worker-0", "worker", 4194305, "vm", "training", 1234, "exchanging", "exchanging [gradients]", 51234.5, 0.1
        ),
    )
    reply = StatusReply("r1", "/x/train.py", "jax", "allreduce", 4, 1, 1, 3725.0, "/logs", members)
    console = Console(width=80, markup=False, highlight=False, file=io.StringIO())
    console.print(_table(reply))
    text = console.file.getvalue()
    assert "run r1 · train.py · allreduce · jax · 4 pieces · view 1 · up 1:02:05" in text
    for fact in ("coordinator", "serving", "worker-0", "4194305", "training", "1234", "51,234", "[gradients]"):
        assert fact in text
