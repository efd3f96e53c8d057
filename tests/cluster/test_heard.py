"""What a member makes of what it hears and has to say, without a connection."""

from __future__ import annotations

import pytest

from shoal.cluster.coordinator_link.heard import HeardSoFar, why_lost
from shoal.cluster.coordinator_link.outbox import Outbox
from shoal.cluster.messages import (
    Beat,
    End,
    Finished,
    Join,
    Post,
    Ready,
    RefusalReason,
    Refuse,
    SpansRecorded,
    StoryTold,
)
from shoal.cluster.view import View
from shoal.errors import CutOff, Refused, RunEnded, UsageError
from shoal.observe.story import StoryKind

from .scene import IDENTITY, member

TOLD = StoryTold(StoryKind.CALL, "fit begins", 3)


def view(number: int, *workers: int) -> View:
    return View.of(number, [member(worker) for worker in workers])


def test_results_of_calls_that_a_script_has_passed_are_not_kept():
    heard = HeardSoFar()
    for call in range(100):
        heard.take(Finished(call, b""))
    heard.forget_results(before=98)
    assert list(heard.results) == [98, 99]
    heard.take(Finished(3, b"told again"))
    assert 3 not in heard.results


def test_who_is_let_in_late_knows_once_what_was_posted_before():
    heard = HeardSoFar()
    with pytest.raises(UsageError, match="not joined"):
        _ = heard.view
    heard.take_view(view(1, 0, 1), "worker-2")
    heard.take(Post("seed", b"7"))
    assert heard.posted_before() == ()
    heard.take_view(view(2, 0, 1, 2), "worker-2")
    assert heard.posted_before() == ("seed",)
    assert heard.posted_before() == ()


def test_a_view_that_is_told_again_is_no_news():
    heard = HeardSoFar()
    heard.take_view(view(2, 0), "worker-0")
    assert [heard.is_newer(view(number, 0)) for number in (1, 2, 3)] == [False, False, True]


def test_what_a_member_hears_tells_it_how_the_run_is_over_for_it():
    heard = HeardSoFar()
    heard.take(End(ok=True, code=0, reason="all are done"))
    assert heard.is_over
    assert isinstance(heard.why_over(), RunEnded)
    said = [
        (End(ok=False, code=1, reason="worker-1 died"), RunEnded),
        (Refuse(RefusalReason.OVER, "it is over"), RunEnded),
        (Refuse(RefusalReason.OUTSIDE, "worker-1 was lost"), CutOff),
        (Refuse(RefusalReason.TAKEN, "there is one"), Refused),
    ]
    assert [type(why_lost(message)) for message, _ in said] == [error for _, error in said]
    assert why_lost(End(ok=True, code=0, reason="all are done")) is None


def test_another_coordinator_is_told_again_what_counts_before_what_is_new():
    join, outbox = Join(member(0), IDENTITY), Outbox()
    for message in (join, Post("seed", b"7"), Beat(), Ready(3), SpansRecorded(b""), TOLD, Ready(3)):
        outbox.add(message)
    while outbox.first() is not None:
        outbox.sent()
    outbox.add(Ready(4))
    outbox.begin_again(join)
    repeated = []
    while (message := outbox.first()) is not None:
        repeated.append(message)
        outbox.sent()
    assert repeated == [join, Post("seed", b"7"), Ready(3), Ready(4)]
    assert outbox.is_empty
