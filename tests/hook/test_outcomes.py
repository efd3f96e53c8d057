"""What a call raised reaches those who were not there as an error that their scripts know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.scene import member

from shoal.checkpoint.resumed import Resumed
from shoal.clock import Deadline
from shoal.cluster.view import View
from shoal.errors import PeerTimeout, RaisedElsewhere, UsageError
from shoal.training.calls import Calls, decode_plain, encode_plain
from shoal.training.kept_outcomes import KeptOutcomes
from shoal.training.outcomes import CallOutcome, RaisedError, decode, error_of


class Particular(Exception):
    """Can't be made from a text."""

    def __init__(self, *, step: int) -> None:
        super().__init__(step)


class Closed(Exception):
    """Of which no other can be derived."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no")


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), KeyError("key"), OSError(2, "missing", "file"), Particular(step=3), UsageError("wrong")],
    ids=repr,
)
def test_a_script_that_catches_an_error_catches_it_on_all_workers(error: Exception) -> None:
    found = error_of(RaisedError.by("worker-1", error))
    assert isinstance(found, RaisedElsewhere)
    assert isinstance(found, type(error))
    assert str(found).startswith(f"worker-1 has left this call with {type(error).__name__}: {error}; its script caught")


def local_error() -> Exception:
    class Local(Exception):
        pass

    return Local("nobody can find its class")


@pytest.mark.parametrize(
    "raised",
    [
        RaisedError.by("worker-1", local_error()),
        RaisedError("worker-1", "no.such.module", "Error", "text"),
        RaisedError("worker-1", "os", "system", "no class"),
        RaisedError("worker-1", "builtins", "SystemExit", "no Exception"),
        RaisedError.by("worker-1", Closed("closed")),
        RaisedError.by("worker-1", PeerTimeout(("worker-0",), "late")),  # would be taken for one of this worker's own
    ],
    ids=lambda raised: raised.kind,
)
def test_where_the_class_is_not_to_be_had_the_error_says_all_the_same(raised: RaisedError) -> None:
    found = error_of(raised)
    assert type(found) is RaisedElsewhere
    assert raised.text in str(found)


def test_a_long_text_is_cut_and_an_outcome_that_is_too_large_is_not_kept() -> None:
    assert len(RaisedError.by("worker-0", ValueError("x" * 10_000)).text) < 5000
    assert decode(CallOutcome(3, b"x" * (1 << 20)).encoded()) == CallOutcome(3)


class SeatOfOne:
    """Where nobody else is: what is said comes back."""

    def __init__(self, call: int = 0) -> None:
        self.member = member(0)
        self.view = View(1, (self.member,), call=call)
        self.results: dict[int, bytes] = {}

    def finished(self, call: int, result: bytes) -> None:
        self.results.setdefault(call, result)

    def caught(self, call: int, next: int, outcome: bytes, deadline: Deadline) -> int:
        self.results.setdefault(call, outcome)
        self.view = View(self.view.number + 1, self.view.members, call=next)
        return next

    def result(self, call: int) -> bytes | None:
        return self.results.get(call)

    def forget_results(self, before: int) -> None:
        pass  # the scenes look at what was told


def count(calls: Calls, live: Any) -> Any:
    return calls.count("fit", live, encode_plain, decode_plain)


def fail(call: int) -> None:
    raise ValueError("bad")


def test_an_error_is_told_when_the_script_goes_on_and_kept_in_checkpoints() -> None:
    coordinator_link = SeatOfOne()
    calls = Calls(coordinator_link)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad"):
        count(calls, fail)
    assert not coordinator_link.results  # the worker may be about to die
    assert count(calls, lambda call: call) == 1
    assert calls.returned == coordinator_link.results
    assert decode(calls.returned[0]).raised == RaisedError("worker-0", "builtins", "ValueError", "bad")


def test_of_calls_within_calls_the_outermost_is_the_one_that_is_left() -> None:
    coordinator_link = SeatOfOne()
    calls = Calls(coordinator_link)  # type: ignore[arg-type]

    def outer(call: int) -> int:
        with pytest.raises(ValueError, match="bad"):
            count(calls, fail)
        return count(calls, lambda call: call)

    assert count(calls, outer) == 2
    with pytest.raises(ValueError, match="bad"):
        count(calls, lambda call: count(calls, fail))
    calls.settle()
    assert {call: decode(kept).next for call, kept in coordinator_link.results.items()} == {0: 3, 3: 5}
    assert calls.number == 5


def test_who_is_still_in_a_call_that_another_has_left_gets_its_error_and_its_number_of_the_next() -> None:
    coordinator_link = SeatOfOne(call=4)
    coordinator_link.results[0] = CallOutcome(
        4, raised=RaisedError("worker-1", "builtins", "ValueError", "bad")
    ).encoded()
    calls = Calls(coordinator_link)  # type: ignore[arg-type]
    coordinator_link.caught = lambda call, next, outcome, deadline: coordinator_link.view.call  # type: ignore[method-assign]

    def waits(call: int) -> None:
        calls.take(coordinator_link.view)

    with pytest.raises(ValueError, match="worker-1 has left this call with ValueError: bad"):
        count(calls, waits)
    assert count(calls, lambda call: call) == 4
    calls.take(coordinator_link.view)  # outside of calls


def test_one_that_takes_no_part_says_nothing_and_is_not_torn_out() -> None:
    coordinator_link = SeatOfOne(call=4)
    calls = Calls(coordinator_link, takes_part=lambda: False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad"):
        count(calls, lambda call: (calls.take(coordinator_link.view), fail(call)))
    assert count(calls, lambda call: call) == 1
    assert not isinstance(decode(coordinator_link.results[1]).raised, RaisedError)


def test_who_comes_late_raises_what_the_others_have_caught() -> None:
    coordinator_link = SeatOfOne()
    coordinator_link.results[0] = CallOutcome(
        3, raised=RaisedError("worker-1", "builtins", "KeyError", "'a'")
    ).encoded()
    coordinator_link.wait_result_or_view = lambda call, after: coordinator_link.results.get(call)  # type: ignore[attr-defined]
    calls = Calls(coordinator_link, is_late=lambda: True)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="worker-1 has left this call"):
        count(calls, fail)
    assert calls.number == 3
    assert calls.returned == coordinator_link.results  # it may be the one who writes the next checkpoint


RAISED = CallOutcome(1, raised=RaisedError("worker-1", "builtins", "ValueError", "bad")).encoded()
OVER = CallOutcome(2, b"over").encoded()
EVALUATED = CallOutcome(3, encode_plain(0.5)).encoded()


def test_what_a_run_goes_on_from_is_in_its_own_checkpoints_too() -> None:
    """So that those can be gone on from, too: calls that raised, loops, and calls that returned something."""
    calls = Calls(SeatOfOne(), Resumed(Path("step-9"), 3, {0: RAISED, 1: OVER, 2: EVALUATED}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad"):
        count(calls, fail)
    with calls.loop() as found:
        assert found is None
    assert count(calls, fail) == 0.5
    assert calls.returned == {0: RAISED, 1: OVER, 2: EVALUATED}


def test_however_many_calls_a_script_makes_what_is_kept_of_them_stays_small() -> None:
    kept = KeptOutcomes(limit=10_000)
    for call in range(1000):
        kept.keep(call, b"x" * 100)
        kept.keep(call, b"y" * 100)  # the same call: the first outcome is not counted any more
    assert list(kept) == list(range(950, 1000))
    assert kept.before == 950
    kept.keep(1000, b"x" * 20_000)
    assert (list(kept), kept.before) == ([], 1001)


def test_a_call_that_a_checkpoint_does_not_know_any_more_is_refused_and_not_made_again() -> None:
    resumed = Resumed(Path("step-9"), 3, {2: EVALUATED}, forgotten=2)
    with pytest.raises(UsageError, match=r"the first 2 are not in the checkpoint, and it makes call 0 "):
        count(Calls(SeatOfOne(), resumed), fail)  # type: ignore[arg-type]
    calls = Calls(SeatOfOne(), resumed)  # type: ignore[arg-type]
    calls.number = 2
    assert count(calls, fail) == 0.5
    assert calls.returned.before == 2
    assert count(calls, lambda call: call) == 3
