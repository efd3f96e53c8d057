"""Rows of different lengths are cut, taken, sent and joined as lists of lists would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.columns import Jagged, LeafSpec, blank, concatenate, dense, empty, pack, spec_of, unpack
from shoal.data.sources import Taken, share, size_of

FLAT = LeafSpec("int64", (None,), "ragged", (dense("int64", ()),))
DEEP = LeafSpec("int64", (None, None), "ragged", (FLAT,))

lists = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=8)
deep_lists = st.lists(lists, max_size=6)


def jagged(rows: list[list[int]]) -> Jagged:
    splits = np.cumsum([0, *map(len, rows)])
    return Jagged(FLAT, splits, [np.array([value for row in rows for value in row], "int64")])


def deep(rows: list[list[list[int]]]) -> Jagged:
    return Jagged(DEEP, np.cumsum([0, *map(len, rows)]), [jagged([row for inner in rows for row in inner])])


def listed(column: object) -> list:
    if isinstance(column, Jagged):
        inner = listed(column.parts[0])
        return [inner[low:high] for low, high in zip(column.splits, column.splits[1:], strict=False)]
    assert isinstance(column, np.ndarray)
    return column.tolist()


@given(deep_lists, st.integers(0, 6), st.integers(0, 6))
def test_neighbouring_rows(rows: list[list[list[int]]], low: int, high: int) -> None:
    column = deep(rows)
    assert len(column) == len(rows)
    assert listed(column[low:high]) == rows[low:high]
    assert listed(column[low:high][:1]) == rows[low:high][:1]


@given(deep_lists.filter(bool), st.data())
def test_rows_by_their_numbers(rows: list[list[list[int]]], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    taken = deep(rows)[np.array(numbers, "int64")]
    assert listed(taken) == [rows[number] for number in numbers]


@given(deep_lists, lists)
def test_they_travel_as_arrays_of_numbers(rows: list[list[list[int]]], more: list[list[int]]) -> None:
    columns = [deep(rows), np.arange(6).reshape(3, 2), jagged(more)]
    arrays = pack(columns)
    assert [array.dtype.kind for array in arrays] == ["i"] * 6
    assert [*map(listed, unpack([*map(spec_of, columns)], arrays))] == [rows, [[0, 1], [2, 3], [4, 5]], more]


@given(st.lists(deep_lists, min_size=1, max_size=4))
def test_one_after_another(parts: list[list[list[list[int]]]]) -> None:
    assert listed(concatenate([deep(part) for part in parts])) == [row for part in parts for row in part]


@pytest.mark.parametrize("spec", [FLAT, DEEP, dense("float32", (2, 3)), LeafSpec("int64", (3,), "text", (FLAT,), 3)])
def test_blank_rows_are_as_many_as_were_asked_for(spec: LeafSpec) -> None:
    assert len(empty(spec)) == 0
    column = blank(spec, 5)
    assert len(column) == 5
    assert spec_of(column) == spec
    assert len(column[1:3]) == 2
    if spec.each:
        assert isinstance(column, Jagged)
        assert len(column.parts[0]) == 5 * spec.each


def test_a_batch_whose_leaves_have_different_numbers_of_rows_is_given_whole_to_one() -> None:
    molecules = [np.arange(2), np.arange(7), jagged([[1], [2, 3], []])]  # 2 molecules, 7 atoms, 3 bonds
    assert size_of([2, 7, 3]) == 1

    def split(size: int) -> list[range]:
        return [range(0), range(size)]

    none, whole = (share(molecules, split, rank) for rank in range(2))
    assert [len(row) for row in none.rows] == [0, 0, 0]
    assert [listed(row) for row in whole.part(0, 1)] == [[0, 1], [*range(7)], [[1], [2, 3], []]]
    assert whole.size == none.size == 1


def test_a_part_of_a_workers_rows_is_counted_from_the_batchs_start() -> None:
    taken = Taken(8, 3, [np.arange(3, 8), np.arange(30, 80, 10)])
    assert [row.tolist() for row in taken.part(4, 6)] == [[4, 5], [40, 50]]
