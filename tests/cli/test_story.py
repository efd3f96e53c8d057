"""`shoal story`, of stories that nobody lived."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal import cli
from shoal.observe.story import Story, StoryKind


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    logs = tmp_path / "shoal" / "logs"
    for run in ("20260101-a", "20260102-b"):
        (logs / run).mkdir(parents=True)
        story = Story(logs / run)
        story.write(StoryKind.PROCESS, f"worker-1 of {run} was started", "worker-1")
        story.write(StoryKind.REDONE, "computed anew", "worker-12", 1234)
    (logs / "20260103-c").mkdir()  # one that has just begun
    return logs


def told(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["story", *words])


def test_the_last_run_is_told_if_none_is_named(home: Path) -> None:
    first, second = told().output.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}  process    worker-1 of 20260102-b was started", first)
    assert second.endswith("redone      step 1,234: computed anew")


def test_a_run_is_named_by_its_name_or_by_its_folder(home: Path) -> None:
    assert "of 20260101-a" in told("20260101-a").output
    assert "of 20260101-a" in told(str(home / "20260101-a")).output


def test_only_what_is_about_a_member_or_a_step_or_is_new(home: Path) -> None:
    assert len(told("--member", "worker-1").output.splitlines()) == 1
    assert len(told("--member", "worker-12").output.splitlines()) == 1
    (line,) = told("--step", "1234", "--json").output.splitlines()
    assert json.loads(line)["member"] == "worker-12"
    assert len(told("--since", "10m").output.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody",), "there is no story of a run nobody. The last runs here: 20260101-a, 20260102-b, 20260103-c."),
        (("--since", "5x"), "--since 5x: expected a time such as 90s, 10m, 2h or 1d."),
    ],
)
def test_what_can_not_be_told_is_said(home: Path, words: tuple[str, ...], said: str) -> None:
    result = told(*words)
    assert (result.exit_code, said in result.output) == (2, True)


def test_where_there_was_no_run_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "no run has left a story in" in told().output
