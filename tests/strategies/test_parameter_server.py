"""What a script may say about parameter servers, and what then counts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from shoal.config import Servers
from shoal.errors import UsageError
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.scope import entered

INF = float("inf")


def test_scopes_nest() -> None:
    assert entered() is None
    with AllReduce(pieces=2).scope() as outer:
        with ParameterServer(staleness=4).scope() as inner:
            assert entered() is inner
        assert entered() is outer
    assert entered() is None


def test_a_scope_is_left_with_an_error_too() -> None:
    with pytest.raises(KeyError), ParameterServer().scope():
        raise KeyError
    assert entered() is None


@pytest.mark.parametrize("staleness", [-1, 1.5, -INF, float("nan")])
def test_a_staleness_is_a_number_of_updates_or_infinite(staleness: float) -> None:
    with pytest.raises(UsageError, match=r"ParameterServer\(staleness=.*\): expected 0, a number of updates"):
        ParameterServer(staleness=staleness)


def test_there_is_at_least_one_replica() -> None:
    with pytest.raises(UsageError, match=r"ParameterServer\(replicas=0\): expected at least 1"):
        ParameterServer(replicas=0)


@pytest.mark.parametrize(
    ("said", "told", "bound"),
    [
        ({}, 3, 3),
        ({}, None, None),
        ({"staleness": 0}, 3, 0),
        ({"staleness": INF}, 3, None),
        ({"staleness": 2}, None, 2),
    ],
)
def test_the_scripts_staleness_counts_more_than_the_command_lines(
    said: dict[str, Any], told: int | None, bound: int | None
) -> None:
    assert ParameterServer(**said).servers_for(Servers(2, 2, told)) == Servers(2, 2, bound)


def test_the_scripts_replicas_must_be_those_of_the_run() -> None:
    assert ParameterServer(replicas=2).servers_for(Servers(3, 2, None)).replicas == 2
    with pytest.raises(UsageError, match=r"this run's servers keep 2\. Start it with `shoal run --replicas 1"):
        ParameterServer(replicas=1).servers_for(Servers(3, 2, None))


def test_a_run_without_servers_is_told_how_to_get_some() -> None:
    with pytest.raises(UsageError, match=r"this run has none.*--strategy ps --servers 1"):
        ParameterServer().servers_for(None)


def test_a_script_finds_it_beside_all_reduce() -> None:
    words = "import shoal; print(shoal.ParameterServer(staleness=4), shoal.AllReduce())"
    run = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.startswith("ParameterServer(staleness=4, ")
