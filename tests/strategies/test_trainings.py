"""A strategy takes one of the trainings that there are: nobody asks which strategy it is."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from shoal.config import Servers
from shoal.errors import UsageError
from shoal.strategies.abstract import AbstractStrategy, RoundSettings
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.auto import Auto
from shoal.strategies.local_sgd import LocalSGD
from shoal.strategies.parameter_server import ParameterServer
from shoal.strategies.pipeline import Pipeline


class Told(NamedTuple):
    pieces: int | None = None
    workers: int = 2
    servers: Servers | None = None
    speeds: tuple[float, ...] = ()
    sliced: bool = False
    every: int | None = None
    stages: int | None = None


class Heard:
    """Trainings that only say what they were asked for."""

    def together(self, pieces: int, fixed: bool, sliced: bool) -> Any:
        return "together", pieces, fixed, sliced

    def together_on_servers(self, pieces: int, fixed: bool, servers: Servers) -> Any:
        return "together on servers", pieces, fixed, servers.staleness

    def at_own_pace(self, servers: Servers, scales: bool) -> Any:
        return "at own pace", servers.staleness, scales

    def in_rounds(self, settings: RoundSettings, outer: Any) -> Any:
        return "in rounds", settings.replicas, settings.every, outer


@pytest.mark.parametrize(
    ("strategy", "pieces", "compress", "expected"),
    [
        (AllReduce(), None, None, True),
        (AllReduce(), None, "auto", True),
        (AllReduce(), 4, None, False),
        (AllReduce(), None, "bf16", False),
        (AllReduce(compress="int8"), None, None, False),
        (Auto(), None, "int8", False),
        (LocalSGD(), None, None, False),
        (ParameterServer(compress="bf16"), None, None, True),
    ],
)
def test_one_worker_is_plain_keras_unless_there_is_something_to_cut_or_to_round(
    strategy: AbstractStrategy, pieces: int | None, compress: str | None, expected: bool
) -> None:
    assert strategy.leaves_to_keras(pieces, compress) == expected


@pytest.mark.parametrize(
    ("strategy", "told", "expected"),
    [
        (AllReduce(), Told(), ("together", 2, False, False)),
        (AllReduce(), Told(pieces=8), ("together", 8, True, False)),
        (AllReduce(pieces=6, sliced=True), Told(pieces=8), ("together", 6, True, True)),
        (AllReduce(), Told(pieces=8, sliced=True), ("together", 8, True, True)),
        (Auto(), Told(pieces=8), ("together", 8, True, False)),
        (LocalSGD(), Told(), ("in rounds", 2, 50, None)),
        (LocalSGD(), Told(pieces=8, every=20), ("in rounds", 8, 20, None)),
        (LocalSGD(every=5, replicas=4, outer="mine"), Told(pieces=8, every=20), ("in rounds", 4, 5, "mine")),
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


@pytest.mark.parametrize("said", [True, False, None])
@pytest.mark.parametrize("told", [True, False])
def test_what_a_script_says_of_slicing_comes_before_the_command_line(said: bool | None, told: bool) -> None:
    *_, sliced = AllReduce(sliced=said).train(Told(sliced=told), Heard())  # type: ignore[arg-type]
    assert sliced is (told if said is None else said)


@pytest.mark.parametrize("number", [2.5, "8", True, 0])
@pytest.mark.parametrize(("strategy", "name"), [(AllReduce, "pieces"), (Pipeline, "pieces"), (Pipeline, "stages")])
def test_a_number_that_is_none_is_refused_with_what_was_expected(strategy: Any, name: str, number: object) -> None:
    with pytest.raises(UsageError, match=rf"{name}={number!r}\): expected a whole number, at least"):
        strategy(**{name: number})


def test_what_the_run_does_not_have_is_said_before_anything_trains() -> None:
    with pytest.raises(UsageError, match="needs at least 1 server"):
        ParameterServer().train(Told(), Heard())
    with pytest.raises(UsageError, match="2 pieces for 3 workers"):
        AllReduce(pieces=2).train(Told(workers=3), Heard())


REFUSED = {
    "LocalSGD(every=0): expected a whole number, at least 1 step": lambda: LocalSGD(every=0),
    "LocalSGD(every=2.5): expected a whole number": lambda: LocalSGD(every=2.5),  # type: ignore[arg-type]
    "LocalSGD(replicas=-1): expected a whole number, at least 1 replica": lambda: LocalSGD(replicas=-1),
    "there is no codec of that name": lambda: LocalSGD(compress="zip"),
    'LocalSGD(compress="auto"): what pays is measured from step to step': lambda: LocalSGD(compress="auto"),
    "LocalSGD(replicas=2) in a run of 3 workers: 1 of them would have no replica": lambda: LocalSGD(replicas=2).train(
        Told(workers=3), Heard()
    ),
    "LocalSGD and parameter servers can't be combined": lambda: LocalSGD().train(
        Told(servers=Servers(1, 1, staleness=0)), Heard()
    ),
    "LocalSGD(uneven=1): expected True or False": lambda: LocalSGD(uneven=1),  # type: ignore[arg-type]
    "LocalSGD(uneven=True, streaming=2) can't be combined": lambda: LocalSGD(uneven=True, streaming=2),
    "Pipeline(speeds=(1, 0)): expected numbers above 0": lambda: Pipeline(speeds=(1, 0)),
    "Pipeline(speeds=fast): expected numbers above 0": lambda: Pipeline(speeds="fast"),  # type: ignore[arg-type]
    "Pipeline(stages=2, speeds=(1,)): 1 speed for 2 stages": lambda: Pipeline(stages=2, speeds=(1,)).train(
        Told(), Heard()
    ),
    "LocalSGD trains with `model.fit`": LocalSGD().refuse_single_steps,
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_local_training_that_cannot_be_is_refused_with_what_would_work(message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        REFUSED[message]()


def test_only_auto_leaves_it_to_a_plan_how_a_fit_trains() -> None:
    planned = AllReduce(pieces=3)
    assert Auto().settled(lambda: planned) is planned
    own = AllReduce(pieces=5)
    assert own.settled(lambda: planned) is own


def test_who_only_plans_takes_no_single_steps() -> None:
    Auto().refuse_single_steps()
    with pytest.raises(UsageError, match=r"a plan is made where a script calls `model.fit`"):
        Auto(only_plans=True).refuse_single_steps()
