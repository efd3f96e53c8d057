"""The pure parts: who writes what, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.checkpoint.divide import divide
from shoal.checkpoint.schedule import EverySeconds, EverySteps, parse
from shoal.errors import UsageError

sizes = st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=40)


@given(sizes, st.integers(1, 9))
def test_every_tensor_is_written_once_and_no_writer_has_much_more_than_another(sizes, writers):
    shares = divide(sizes, writers)
    assert len(shares) == writers
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@given(sizes, st.integers(1, 9), st.randoms())
def test_all_members_derive_the_same_division(sizes, writers, random):
    shuffled = list(sizes.items())
    random.shuffle(shuffled)
    assert divide(dict(shuffled), writers) == divide(sizes, writers)


def test_large_tensors_are_spread_and_small_ones_fill_up():
    assert divide({"a": 6, "b": 5, "c": 4, "d": 3, "e": 2}, 2) == [["a", "d", "e"], ["b", "c"]]
    assert divide({"a": 1}, 3) == [["a"], [], []]


def test_a_checkpoint_needs_a_writer():
    with pytest.raises(ValueError, match="at least 1 writer, not 0"):
        divide({"a": 1}, 0)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("30s", EverySeconds(30)),
        ("5m", EverySeconds(300)),
        ("2h", EverySeconds(7200)),
        ("1.5h", EverySeconds(5400)),
        ("500steps", EverySteps(500)),
        ("1step", EverySteps(1)),
        (" 10STEPS ", EverySteps(10)),
    ],
)
def test_schedules_are_written_as_people_say_them(text, schedule):
    assert parse(text) == schedule


@pytest.mark.parametrize(
    "text", ["", "5", "m", "0s", "0steps", "-5m", "1.5steps", "5 d", "5mm", "nan", "1e3s", "٣s", "9" * 40]
)
def test_another_text_is_refused_with_what_is_expected(text):
    with pytest.raises(UsageError, match="expected a time such as 30s, 5m or 2h, or a number of steps"):
        parse(text)


def test_steps_are_counted_from_the_last_checkpoint():
    every = EverySteps(5)
    assert [step for step in range(10, 22) if every.due(step, 10, 1e9)] == [15, 16, 17, 18, 19, 20, 21]


def test_time_alone_makes_no_checkpoint_without_a_step():
    every = EverySeconds(30)
    assert every.due(11, 10, 30.0)
    assert not every.due(11, 10, 29.9)
    assert not every.due(10, 10, 1e9)
