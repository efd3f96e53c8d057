"""`shoal doctor` of runs that are over, and of none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal import cli
from shoal.cluster.last_status import write_last
from shoal.cluster.messages import MemberStatus, StatusReply
from shoal.observe.phases import TimeUse
from shoal.observe.story import Story, StoryKind
from shoal.observe.time_shares import TimeShares


def worker(number: int, spent: dict[TimeUse, float]) -> MemberStatus:
    return MemberStatus(
        f"worker-{number}", "worker", 7, "far", "finished", 9, "", "finished", 0.0, 0.0, TimeShares(spent)
    )


def leave(logs: Path, *members: MemberStatus) -> None:
    logs.mkdir(parents=True)
    Story(logs).write(StoryKind.END, "every worker finished its script")
    if members:
        write_last(logs, StatusReply(logs.name, "/x/t.py", "jax", "allreduce", 2, 1, 1, 9.0, str(logs), members))


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir(mode=0o700)
    return tmp_path / "shoal" / "logs"


def told(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["doctor", *words])


def test_the_last_run_is_examined_the_worst_first(logs: Path) -> None:
    leave(logs / "a", *(worker(number, {TimeUse.COMPUTING: 2.0, TimeUse.READING: 8.0}) for number in range(2)))
    lines = told().output.splitlines()
    assert lines[0] == "run a · 2 workers · 20 % computing · 80 % reading"
    assert lines[1] == "1. The workers wait for data 80 % of the time."
    assert lines[2].startswith("   Read faster:")
    assert json.loads(told("--json").output)[0]["lost"] == pytest.approx(0.8)


def test_a_healthy_run_is_called_healthy_and_one_that_never_trained_too_young(logs: Path) -> None:
    leave(logs / "a", worker(0, {TimeUse.COMPUTING: 9.0}), worker(1, {TimeUse.COMPUTING: 9.0}))
    leave(logs / "b", worker(0, {}))
    assert "Nothing stands out: 100 % of the time is spent computing." in told("a").output
    assert "It has not trained yet" in told("b").output


def test_one_that_left_no_figures_is_said_to_have_none(logs: Path) -> None:
    leave(logs / "a")
    result = told("a")
    assert (result.exit_code, "a has left no figures" in result.output) == (2, True)
