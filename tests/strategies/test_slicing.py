"""An update in units: cut alike by everybody, divided by speed, and never in a place that somebody else needs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.strategies.slicing import (
    SIZES,
    UNIT,
    BlockOrders,
    BlockStanding,
    StateLayout,
    Unit,
    VariableSpan,
    block_orders,
    cut_into_units,
    entry_of,
    has_had,
    place_of,
    shares_of_units,
)

sizes = st.lists(st.tuples(st.integers(1, 3 * UNIT), st.integers(0, 1)), min_size=1, max_size=8)


def spans(sizes: list[tuple[int, int]]) -> list[VariableSpan]:
    """Variables one behind the other, each on a cache line, as an exchange's vector has them."""
    found: list[VariableSpan] = []
    for size, kind in sizes:
        start = -(-found[-1].stop // 16) * 16 if found else 0
        found.append(VariableSpan(start, start + size, kind))
    return found


@given(sizes)
def test_every_number_is_in_one_unit_with_others_that_are_treated_alike(given: list[tuple[int, int]]) -> None:
    cut = spans(given)
    units = cut_into_units(cut)
    assert all(0 < unit.size <= unit.room for unit in units)
    assert all(one.stop <= other.start for one, other in pairwise(units))
    for span in cut:
        inside = [unit for unit in units if unit.start < span.stop and span.start < unit.stop]
        assert {unit.kind for unit in inside} == {span.kind}
        assert inside[0].start <= span.start
        assert inside[-1].stop >= span.stop
        assert all(one.stop == other.start for one, other in pairwise(inside))


def test_large_tensors_are_cut_where_it_changes_no_bit() -> None:
    units = cut_into_units([VariableSpan(0, 5 * UNIT + 100)])
    assert all(unit.start % 1024 == 0 for unit in units)
    assert [unit.room for unit in units] == [UNIT] * 5 + [SIZES[0]]


@given(st.integers(1, 60), st.lists(st.floats(0.05, 20.0), min_size=1, max_size=7))
def test_every_unit_has_one_worker_and_the_fast_ones_have_more(count: int, speeds: list[float]) -> None:
    units = [Unit(n * UNIT, (n + 1) * UNIT, 0) for n in range(count)]
    shares = shares_of_units(units, speeds)
    assert [number for share in shares for number in share] == list(range(count))
    for share, speed in zip(shares, speeds, strict=True):
        assert abs(len(share) - count * speed / sum(speeds)) <= 1.0


def test_a_worker_at_a_quarter_of_the_speed_has_a_fifth() -> None:
    units = [Unit(n * UNIT, (n + 1) * UNIT, 0) for n in range(40)]
    assert [len(share) for share in shares_of_units(units, [1.0, 0.25])] == [32, 8]


@given(sizes, st.integers(0, 3), st.integers(1, 4), st.randoms())
def test_whatever_has_been_updated_nobody_writes_where_a_unit_lies(
    given: list[tuple[int, int]], kept: int, workers: int, random: object
) -> None:
    layout = StateLayout(cut_into_units(spans(given)), kept, workers)
    table = layout.first_entries(7)
    spare = layout.spare_places(table)
    numbers = list(range(len(table)))
    random.shuffle(numbers)  # type: ignore[attr-defined]
    for number in numbers[: len(numbers) // 2 + 1]:  # some have had the eighth update when somebody is lost
        mine = spare[number % workers]
        left, room = place_of(table[number]), layout.units[number].room
        table[number] = entry_of(8, mine[room])
        mine[room] = left
        assert has_had(table[number], 8)
    places = [place_of(entry) for entry in table]
    free = [place for mine in layout.spare_places(table) for place in mine.values()]
    assert len({*places, *free}) == len(places) + len(free)
    ends = sorted((*places, *free, layout.nbytes))
    assert all(high - low >= kept * SIZES[0] * 4 for low, high in pairwise(ends))


def test_what_is_kept_once_is_kept_little_more_than_once() -> None:
    parameters = 10_500_000
    layout = StateLayout(cut_into_units([VariableSpan(0, parameters)]), 2, 2)
    assert layout.state_bytes <= 1.1 * 2 * 4 * parameters


def test_a_block_stays_until_somebody_who_could_write_to_it_is_gone() -> None:
    both = BlockStanding(3, 100, ("a", "b"), 2)
    assert block_orders("ab", (0, 1), [both, both]) == BlockOrders(0, (0, 1), False, 2)
    assert block_orders("a", (0,), [both]) == BlockOrders(0, (0,), True, 1)
    assert block_orders("abc", (0, 1, 2), [both, both, BlockStanding(-1, 0)]) == BlockOrders(0, (0, 1), True, 3)


def test_of_two_blocks_the_later_is_valid() -> None:
    old, new = BlockStanding(3, 100, ("a", "b", "c"), 3), BlockStanding(4, 100, ("a", "b"), 2)
    assert block_orders("ab", (0, 1), [old, new]) == BlockOrders(1, (1,), False, 2)


def test_each_host_has_a_block_of_its_own() -> None:
    far = BlockStanding(5, 100, ("c",), 1)
    fresh = BlockStanding(-1, 0)
    assert block_orders("abc", (0, 1), [fresh, fresh, far]) == BlockOrders(0, (), True, 2)
    assert block_orders("abc", (2,), [fresh, fresh, far]) == BlockOrders(2, (2,), False, 1)
