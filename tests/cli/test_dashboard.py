"""`shoal dashboard` and `shoal run --dashboard`, up to where a server would be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal import cli
from shoal.cli.dashboard import watched_runs
from shoal.cli.optional_port import fill_in_port
from shoal.cluster import folders
from shoal.cluster.last_status import write_last
from shoal.cluster.messages import StatusReply
from shoal.config import RunConfig
from shoal.dashboard import extra
from shoal.errors import UsageError
from shoal.launch import local
from shoal.observe.story import Story, StoryKind


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("--dashboard train.py", "--dashboard=0 train.py"),
        ("--dashboard 8080 train.py", "--dashboard 8080 train.py"),
        ("--dashboard=8080 train.py", "--dashboard=8080 train.py"),
        ("-n 4 --dashboard -m pkg.train", "-n 4 --dashboard=0 -m pkg.train"),
        ("-n 4 train.py --dashboard", "-n 4 train.py --dashboard"),  # the script's own
        ("--logs --dashboard train.py", "--logs --dashboard train.py"),  # a folder of that name
        ("--dashboard", "--dashboard=0"),
        ("--dashboard -- train.py", "--dashboard=0 -- train.py"),
    ],
)
def test_the_port_may_be_left_out_before_a_script(words: str, filled: str) -> None:
    assert fill_in_port(words.split(), {"-n", "--logs", "--dashboard"}) == filled.split()


def test_a_run_without_the_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setattr(extra, "find_spec", lambda package: None)
    monkeypatch.setattr(local, "launch", lambda *_: pytest.fail("it must not start"))
    for words in (["run", "--dashboard", "train.py"], ["dashboard"]):
        result = CliRunner().invoke(cli.main, words)
        assert result.exit_code == 2
        assert "starlette and uvicorn, which are not installed: pip install 'shoal[dashboard]'" in result.output


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir(mode=0o700)
    return tmp_path


def leave(logs: Path, run: str) -> None:
    logs.mkdir(parents=True)
    Story(logs).write(StoryKind.END, "every worker finished its script")
    write_last(logs, StatusReply(run, "/x/t.py", "jax", "allreduce", 2, 1, 1, 9.0, str(logs), ()))


def test_living_runs_and_the_last_that_are_over_are_shown_or_those_that_are_named(world: Path) -> None:
    for number in range(9):
        leave(world / "shoal" / "logs" / f"run-{number}", f"run-{number}")
    leave(world / "elsewhere", "run-x")
    with folders.create(folders.home({"XDG_RUNTIME_DIR": str(world / "r")}), "run-8") as folder:
        config = RunConfig("run-8", 2, 1, "jax", "/x/t.py", logs=str(world / "shoal" / "logs" / "run-8"))
        config.save(folder)
        shown = watched_runs([])
        assert [run.name for run in shown] == [f"run-{number}" for number in (3, 4, 5, 6, 7, 8)]
        assert [run.is_alive for run in shown] == [False] * 5 + [True]
        named = watched_runs(["run-8", "run-0", str(world / "elsewhere")])
        assert [(run.name, run.is_alive) for run in named] == [("run-8", True), ("run-0", False), ("run-x", False)]
    with pytest.raises(UsageError, match="there is no story of a run run-77"):
        watched_runs(["run-77"])
