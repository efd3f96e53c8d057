"""Workers that joined a run of elsewhere: when all have left it, with which code, and how places are asked for anew."""

from __future__ import annotations

import select
import threading
from contextlib import closing

import pytest

from shoal.cluster.exits import ENDED, INTERRUPTED, OUTSIDE
from shoal.cluster.launcher_pipe import Interrupt, MemberTold, Reaped, Spawned
from shoal.cluster.messages import End, JoinerPlace
from shoal.config import RunConfig
from shoal.errors import UsageError
from shoal.launch.plan import ProcessPlan
from shoal.launch.supervision import remote_coordination
from shoal.launch.supervision.coordination import CoordinatorOrder, PlaceGiven
from shoal.launch.supervision.guests import Guests
from shoal.launch.supervision.remote_coordination import AbstractRunElsewhere, RemoteCoordination

PLACE = ProcessPlan("worker-1000", (), {})
CONFIG = RunConfig("r1", 2, 1, "jax", "train.py")


def guests(*places: str) -> Guests:
    some = Guests()
    for place in places:
        some.give(place, place)
        some.come(place)
    return some


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (0, End(True, 0, "")),
        (ENDED, End(True, 0, "")),
        (INTERRUPTED, End(False, 130, "")),
        (1, End(False, 1, "a ended with code 1; giving up")),
        (-9, End(False, 1, "a ended with code -9; giving up")),
    ],
)
def test_the_code_is_that_of_the_only_guest_if_it_left_on_purpose(code: int, ended: End) -> None:
    one = guests("a")
    assert one.end() is None
    one.leave("a", code)
    assert one.end() == ended


def test_it_goes_on_as_long_as_one_takes_part_or_is_to_come() -> None:
    two = guests("a", "b")
    two.leave("a", ENDED)
    assert two.end() is None
    two.leave("b", OUTSIDE)
    two.expect("b")
    assert two.end() is None
    two.give("c", "b")
    assert two.end() is None
    two.come("c")
    two.leave("c", ENDED)
    assert two.end() == End(True, 0, ""), "what became of the one before does not count"


def test_after_an_interrupt_nobody_is_waited_for_who_is_not_there() -> None:
    one = Guests()
    one.give("a", "a")
    assert one.end() is None
    one.interrupt(143)
    assert one.end() == End(False, 143, "")
    late = guests("a")
    late.interrupt(130)
    assert late.end() is None, "it leaves after its step"
    late.leave("a", ENDED)
    assert late.end() == End(True, 0, "")
    killed = guests("a")
    killed.interrupt(130)
    killed.leave("a", -9)
    assert killed.end() == End(False, 130, "")


class _Run(AbstractRunElsewhere):
    """Gives a place, or refuses, as soon as the test lets it."""

    def __init__(self, refuses: bool = False) -> None:
        self.may = threading.Event()
        self.prepared: list[str] = []
        self.refuses = refuses

    def ask(self, role: str) -> JoinerPlace:
        assert self.may.wait(20.0)
        if self.refuses:
            raise UsageError("can't reach the run")
        return JoinerPlace("worker-1001", CONFIG)

    def prepare(self, place: JoinerPlace) -> None:
        self.prepared.append(place.member)


def heard(coordination: RemoteCoordination) -> list[CoordinatorOrder]:
    """What it says next."""
    while not (orders := coordination.hear()):
        assert select.select([coordination], [], [], 20.0)[0], "nothing came"
    return orders


def test_who_died_comes_back_in_a_place_that_is_asked_for_meanwhile() -> None:
    run = _Run()
    with closing(RemoteCoordination(run, [PLACE])) as coordination:
        coordination.tell(Spawned("worker-1000", 7))
        coordination.tell(Reaped("worker-1000", OUTSIDE))
        coordination.ask(PLACE)
        assert heard(coordination) == [MemberTold("worker-1000 ended with code 76; coming back")]
        assert coordination.hear() == [], "it does not wait"
        run.may.set()
        assert heard(coordination) == [PlaceGiven("worker-1001", PLACE)]
        assert run.prepared == ["worker-1001"]
        coordination.tell(Spawned("worker-1001", 8))
        coordination.tell(Reaped("worker-1001", ENDED))
        assert heard(coordination) == [End(True, 0, "")]
        assert coordination.hear() == [], "End comes once"


def test_an_interrupt_is_heard_while_a_place_is_asked_for() -> None:
    run = _Run()
    with closing(RemoteCoordination(run, [PLACE])) as coordination:
        coordination.tell(Spawned("worker-1000", 7))
        coordination.tell(Reaped("worker-1000", OUTSIDE))
        coordination.ask(PLACE)
        coordination.tell(Interrupt("it was interrupted (SIGINT)", 130))
        assert heard(coordination) == [MemberTold("worker-1000 ended with code 76; coming back")]
        assert heard(coordination) == [End(False, 130, "")]
    run.may.set()
    assert run.prepared == []


def test_a_place_that_is_given_after_an_interrupt_is_left_empty() -> None:
    run, other = _Run(), ProcessPlan("worker-1002", (), {})
    with closing(RemoteCoordination(run, [PLACE, other])) as coordination:
        for id in (PLACE.id, other.id):
            coordination.tell(Spawned(id, 7))
        coordination.tell(Reaped(PLACE.id, OUTSIDE))
        coordination.ask(PLACE)
        coordination.tell(Interrupt("it was interrupted (SIGINT)", 130))
        assert heard(coordination) == [MemberTold("worker-1000 ended with code 76; coming back")]
        coordination.hear()
        run.may.set()
        assert select.select([coordination], [], [], 20.0)[0], "the answer came"
        assert coordination.hear() == []
        coordination.tell(Reaped(other.id, ENDED))
        assert heard(coordination) == [End(False, 130, "")]


def test_a_run_that_cannot_be_reached_any_more_is_an_error() -> None:
    run = _Run(refuses=True)
    with closing(RemoteCoordination(run, [PLACE])) as coordination:
        coordination.tell(Spawned("worker-1000", 7))
        coordination.tell(Reaped("worker-1000", OUTSIDE))
        coordination.ask(PLACE)
        run.may.set()
        assert heard(coordination) == [MemberTold("worker-1000 ended with code 76; coming back")]
        with pytest.raises(UsageError, match="can't reach the run"):
            heard(coordination)


def test_a_place_that_is_not_to_be_had_costs_no_healthy_worker_and_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_coordination, "AGAIN", 0.01)
    run = _Run(refuses=True)
    run.may.set()
    other = ProcessPlan("worker-1001", (), {})
    with closing(RemoteCoordination(run, [PLACE, other])) as coordination:
        for number, id in enumerate(("worker-1000", "worker-1001")):
            coordination.tell(Spawned(id, 7 + number))
        coordination.tell(Reaped("worker-1000", OUTSIDE))
        coordination.ask(PLACE)
        assert heard(coordination) == [MemberTold("worker-1000 ended with code 76; coming back")]
        (told,) = heard(coordination)
        assert isinstance(told, MemberTold)
        assert told.text.startswith("nobody comes in the place of worker-1000 yet: can't reach the run.")
        run.refuses = False
        assert heard(coordination) == [PlaceGiven("worker-1001", PLACE)]
