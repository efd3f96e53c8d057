"""Two clocks, a link between them, and what can be known of the other."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.clock_offset import ClockOffset, RoundTrip, best
from shoal.observe.phases import Phase
from shoal.observe.record_files import RecordFile, read
from shoal.observe.spans import KeptSpan, SpanBlock

HERE, THERE = "machine a", "machine b"


def test_of_several_round_trips_the_shortest_says_most() -> None:
    trips = [RoundTrip(0.0, 105.0, 2.0), RoundTrip(3.0, 103.2, 3.2), RoundTrip(4.0, 109.0, 5.0)]
    trip = best(trips, now=6.0)
    assert trip is not None
    assert trip.ahead == 103.2 - 3.1
    assert best([], now=0.0) is None


def test_an_old_round_trip_says_less_than_a_slightly_longer_new_one() -> None:
    old, soon, late = (RoundTrip(at, at + 50.0, at + trip) for at, trip in ((0.0, 0.001), (1.0, 0.002), (600.0, 0.002)))
    assert best([old, soon], now=2.0) is old
    assert best([old, late], now=601.0) is late


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_the_estimate_is_never_off_by_more_than_half_of_the_shortest_round_trip(
    ahead: float, ways: list[tuple[float, float]]
) -> None:
    trips = [RoundTrip(10.0, 10.0 + there + ahead, 10.0 + there + back) for there, back in ways]
    trip = best(trips, now=12.0)
    assert trip is not None
    shortest = min(trip.heard - trip.asked for trip in trips)
    assert abs(trip.ahead - ahead) <= shortest / 2 + 1e-4  # the drift of two seconds, at most


def test_a_member_finds_the_coordinators_clock_through_a_link_that_mostly_dawdles() -> None:
    dice, offset, now = random.Random(5), ClockOffset(HERE), 1000.0
    assert offset.ahead(now) is None
    for _ in range(200):
        asked = offset.ask(now)
        if asked is not None:
            there, back = dice.expovariate(20) + 0.0004, dice.expovariate(20) + 0.0004
            offset.hear(asked, asked + there + 33.3, THERE, asked + there + back)
        now += 0.5
    ahead = offset.ahead(now)
    assert ahead is not None
    assert abs(ahead - 33.3) < 0.02


def test_it_asks_often_at_first_and_rarely_later() -> None:
    offset = ClockOffset(HERE)
    asked = [beat for beat in range(200) if offset.ask(beat * 0.5) is not None]
    assert asked[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 27, 47]


def test_on_the_same_machine_clocks_are_one_and_nothing_more_is_asked() -> None:
    offset = ClockOffset(HERE)
    asked = offset.ask(10.0)
    assert asked == 10.0
    offset.hear(asked, 10.4, HERE, 10.5)
    assert offset.ahead(11.0) == 0.0
    assert offset.ask(12.0) is None


def test_a_machine_that_was_copied_while_it_ran_has_a_clock_of_its_own() -> None:
    """Both have the same ids. What the other clock says is not between the question and the answer."""
    offset = ClockOffset(HERE)
    asked = offset.ask(10.0)
    assert asked == 10.0
    offset.hear(asked, 910.1, HERE, 10.2)
    assert offset.ahead(11.0) == 900.0
    assert offset.ask(12.0) == 12.0


def test_what_two_hosts_did_at_once_lies_side_by_side_although_their_clocks_are_900_s_apart(tmp_path: Path) -> None:
    """By the launcher's clock from 100 to 101. The other's is 900 s behind, and its link takes 3 ms and 1 ms."""
    offset, epoch = ClockOffset(THERE), 1_800_000_000.0
    asked = offset.ask(-810.0)
    assert asked == -810.0
    offset.hear(asked, 90.003, HERE, -809.996)
    ahead = offset.ahead(-799.0)
    assert ahead is not None
    for member, behind, known in (("worker-0", 0.0, 0.0), ("worker-1", 900.0, ahead)):
        computed = KeptSpan.of(Phase.COMPUTING, 7, 100.0 - behind, 101.0 - behind)
        RecordFile(tmp_path, member).write(SpanBlock(epoch + known, 0, (computed,)))
    here, there = (spans[0] for spans in read(tmp_path).values())
    assert here.start == epoch + 100.0
    assert abs(here.start - there.start) < 0.002


def test_an_answer_to_another_question_says_nothing() -> None:
    offset = ClockOffset(HERE)
    offset.ask(10.0)
    offset.hear(9.0, 500.0, THERE, 10.5)
    assert offset.ahead(11.0) is None
