"""`shoal trace`, of records that nobody lived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.observe.test_chrome_trace import check_format, leave_record

from shoal import cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "state" / "shoal" / "logs" / "20260101-a"
    logs.mkdir(parents=True)
    leave_record(logs)
    return logs


def trace(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["trace", *words])


def test_a_run_that_is_over_is_traced_into_a_file_of_its_name(home: Path) -> None:
    result = trace()
    assert result.exit_code == 0
    assert result.stderr.startswith("20260101-a.trace.json: 24 spans of 2 members over 3.0 s; 4 spans were dropped")
    check_format(json.loads(Path("20260101-a.trace.json").read_text())["traceEvents"])


def test_the_file_and_the_time_are_chosen(home: Path) -> None:
    result = trace(str(home), "-o", "last.json", "--last", "1.05s", "--json")
    assert json.loads(result.stdout)["spans"] == 10
    check_format(json.loads(Path("last.json").read_text())["traceEvents"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--last", "5x"), "--last 5x: expected a time such as 90s, 10m, 2h or 1d."),
        (("-o", "nowhere/trace.json"), "can't write the trace to nowhere/trace.json: No such file or directory."),
        (("nobody",), "there is no story of a run nobody."),
    ],
)
def test_what_can_not_be_traced_is_said(home: Path, words: tuple[str, ...], said: str) -> None:
    result = trace(*words)
    assert result.exit_code == 2
    assert said in result.stderr
