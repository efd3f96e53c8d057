"""Where a member's time goes."""

from __future__ import annotations

import pytest

from shoal.observe import recorder
from shoal.observe.phases import Phase, TimeUse
from shoal.observe.recorder import Recorder, Waited
from shoal.observe.time_shares import TimeShares, slowest, together


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    return now


def test_every_second_goes_into_something(clock: list[float]) -> None:
    one = Recorder()
    for phase, seconds in (
        (Phase.READING, 1.0),
        (Phase.COMPUTING, 5.0),
        (Phase.APPLYING, 1.0),
        (Phase.EXCHANGING, 3.0),
    ):
        one.record(phase)
        clock[0] += seconds
    one.wait([Waited(clock[0] - 3.0, clock[0] - 2.0), Waited(clock[0] - 1.0, clock[0])])
    spent = one.shares()
    assert spent.seconds[TimeUse.COMPUTING] == 6.0
    assert (spent.seconds[TimeUse.EXCHANGING], spent.seconds[TimeUse.WAITING]) == (1.0, 2.0)
    assert sum(spent.seconds.values()) == 10.0
    assert str(spent) == "60 % computing · 10 % exchanging · 20 % waiting · 10 % reading"


def test_what_came_since_an_earlier_look(clock: list[float]) -> None:
    one = Recorder()
    one.record(Phase.COMPUTING)
    clock[0] += 8.0
    before = one.shares()
    one.record(Phase.CALLBACKS)
    clock[0] += 2.0
    assert one.shares().since(before).share(TimeUse.CALLBACKS) == 1.0


def test_the_scripts_own_lines_are_no_part_of_the_training(clock: list[float]) -> None:
    one = Recorder()
    one.record(Phase.SCRIPT)
    clock[0] += 60.0
    one.record(Phase.COMPUTING)
    clock[0] += 1.0
    assert one.shares().share(TimeUse.COMPUTING) == 1.0
    assert str(TimeShares()) == ""


def test_of_several_members_together() -> None:
    both = together([TimeShares({TimeUse.COMPUTING: 3.0}), TimeShares({TimeUse.COMPUTING: 1.0, TimeUse.WAITING: 4.0})])
    assert str(both) == "50 % computing · 50 % waiting"


def test_the_slowest_is_the_one_that_all_others_wait_for() -> None:
    def waits(*shares: float) -> dict[str, TimeShares]:
        spent = ({TimeUse.COMPUTING: 1 - share, TimeUse.WAITING: share} for share in shares)
        return {f"worker-{number}": TimeShares(one) for number, one in enumerate(spent)}

    assert slowest(waits(0.4, 0.05, 0.5)) == "worker-1"
    assert slowest(waits(0.1, 0.05, 0.5)) is None
    assert slowest(waits(0.9)) is None
    assert slowest({}) is None
