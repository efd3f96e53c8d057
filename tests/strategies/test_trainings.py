"""A strategy takes one of the trainings that there are: nobody asks which strategy it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from shoal.config import Servers
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.parameter_server import ParameterServer


class Told(NamedTuple):
    pieces: int | None = None
    workers: int = 2
    servers: Servers | None = None


class Heard:
    """Trainings that only say what they were asked for."""

    def together(self, pieces: int, fixed: bool, sliced: bool) -> Any:
        return "together", pieces, fixed, sliced

    def together_on_servers(self, pieces: int, fixed: bool, servers: Servers) -> Any:
        return "together on servers", pieces, fixed, servers.staleness

    def at_own_pace(self, servers: Servers, scales: bool) -> Any:
        return "at own pace", servers.staleness, scales


@pytest.mark.parametrize(
    ("strategy", "told", "expected"),
    [
        (AllReduce(), Told(), ("together", 2, False, False)),
        (AllReduce(), Told(pieces=8), ("together", 8, True, False)),
        (AllReduce(pieces=6, sliced=True), Told(pieces=8), ("together", 6, True, True)),
        (ParameterServer(), Told(servers=Servers(1, 1, staleness=0)), ("together on servers", 2, False, 0)),
        (ParameterServer(), Told(pieces=4, servers=Servers(1, 1, staleness=0)), ("together on servers", 4, True, 0)),
        (ParameterServer(), Told(servers=Servers(1, 1, staleness=3)), ("at own pace", 3, False)),
        (
            ParameterServer(staleness=float("inf"), scale_by_staleness=True),
            Told(servers=Servers(2, 1, staleness=0)),
            ("at own pace", None, True),
        ),
    ],
    ids=str,
)
def test_a_strategy_takes_the_training_that_it_is(strategy: AbstractStrategy, told: Told, expected: Any) -> None:
    assert strategy.train(told, Heard()) == expected


def test_what_the_run_does_not_have_is_said_before_anything_trains() -> None:
    with pytest.raises(UsageError, match="needs at least 1 server"):
        ParameterServer().train(Told(), Heard())
    with pytest.raises(UsageError, match="2 pieces for 3 workers"):
        AllReduce(pieces=2).train(Told(workers=3), Heard())
