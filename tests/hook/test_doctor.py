"""What `shoal doctor` finds in real runs that are over. bench/doctor.py has one for each of its findings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from shoal import cli

from .runs import Trainings, succeeded


def findings(trainings: Trainings, backend: str, wrong: str) -> list[dict[str, Any]]:
    """But that other tests use the cores."""
    result = trainings.shoal(backend, "-n 2 --threads 1", "limited.py", wrong)
    succeeded(result)
    assert "shoal:   time " in result.stderr, "the summary tells where the time went"
    told = CliRunner().invoke(cli.main, ["doctor", "--json"], env=trainings.environ, catch_exceptions=False)
    return [finding for finding in json.loads(told.stdout) if finding["kind"] != "cores"]


@pytest.mark.parametrize(
    ("backend", "wrong", "kind", "what"),
    [
        ("torch", "callback", "callbacks", "most of it SleepyMonitor"),
        ("torch", "generator", "data", "all wait for the data that worker-0 reads for them"),
        ("jax", "shapes", "compiling", "the shape of the batch changes, lately from (4, "),
    ],
)
def test_what_is_wrong_with_a_run_is_found_first(
    trainings: Trainings, backend: str, wrong: str, kind: str, what: str
) -> None:
    first, *_ = findings(trainings, backend, wrong)
    assert first["kind"] == kind, first
    assert what in first["what"]
