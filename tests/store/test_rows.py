"""Rows of tables: what they are before anybody has changed them, who holds them, and how they are kept."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import BadFrame
from shoal.store.values.rows import Fill, KeptRows, NewRows, Table, deal
from shoal.store.values.tensors import RowShapes

UNIFORM = NewRows(Fill.UNIFORM, -0.5, 1.5, seed=7)
NORMAL = NewRows(Fill.NORMAL, 2.0, 0.5, seed=7)


def table(parts: int = 1, rows: int = 1000) -> Table:
    return Table("t", rows, 3, UNIFORM, parts)


@pytest.mark.parametrize("new", [UNIFORM, NORMAL, NewRows(Fill.CONSTANT, 4.0)])
def test_a_new_row_depends_on_seed_and_id_alone(new: NewRows) -> None:
    together = new.make(np.arange(100), 3)
    for id in (0, 17, 99):
        assert (new.make(np.array([id]), 3) == together[id]).all()


def test_new_rows_have_the_distribution_that_was_asked_for() -> None:
    rows = UNIFORM.make(np.arange(30_000), 4)
    assert rows.dtype == np.float32
    assert -0.5 <= rows.min() < -0.499
    assert 1.499 < rows.max() <= 1.5
    assert rows.mean() == pytest.approx(0.5, abs=0.01)
    rows = NORMAL.make(np.arange(30_000), 4)
    assert (rows.mean(), rows.std()) == pytest.approx((2.0, 0.5), abs=0.01)


def test_another_seed_makes_other_rows_and_no_two_rows_are_alike() -> None:
    rows = UNIFORM.make(np.arange(10_000), 3)
    assert not (rows == NewRows(Fill.UNIFORM, -0.5, 1.5, seed=8).make(np.arange(10_000), 3)).any(axis=1).all()
    assert len(np.unique(rows, axis=0)) == 10_000


def test_every_row_is_in_one_part() -> None:
    cut, ids = table(parts=3), np.arange(1000)
    dealt = deal(ids, 3)
    assert sorted(np.concatenate(dealt)) == list(ids)
    assert [len(part) for part in dealt] == [cut.rows_of(part) for part in range(3)]


def test_a_row_that_is_only_read_is_not_kept() -> None:
    kept = KeptRows(table(), 0, (0.1,))
    assert (kept.read(np.array([5, 9])) == UNIFORM.make(np.array([5, 9]), 3)).all()
    assert len(kept) == 0


@pytest.mark.parametrize("part", [0, 1])
def test_rows_stay_what_they_were_made_while_the_room_grows(part: int) -> None:
    kept, expected, drawn = KeptRows(table(2, 20_000), part, (0.25,)), {}, np.random.default_rng(0)
    for _ in range(40):
        ids = 2 * drawn.choice(10_000, 200, replace=False) + part
        places = kept.places(ids)
        rows, kept_for_them = kept.gather(places)
        assert (kept_for_them == [[expected.get(id, (0, 0.25))[1]] * 3 for id in ids]).all()
        changed = rows + 1
        kept.scatter(places, [changed, kept_for_them * 2])
        expected |= {id: (row, state) for id, row, state in zip(ids, changed, 2 * kept_for_them[:, 0], strict=True)}
    assert sorted(kept.ids) == sorted(expected)
    every = np.array(sorted(expected))
    assert (kept.read(every) == [expected[id][0] for id in every]).all()


def test_a_copy_is_the_same_and_forgets_what_it_was() -> None:
    first, second = KeptRows(table(), 0, ()), KeptRows(table(), 0, ())
    places = first.places(np.array([8, 3]))
    first.scatter(places, [np.ones((2, 3), np.float32)])
    second.places(np.array([1, 2]))
    second.replace(first.ids, first.columns)
    ids = np.array([1, 2, 3, 8])
    assert (second.read(ids) == first.read(ids)).all()
    second.replace(np.empty(0, np.int64), [np.empty(0, np.float32)])
    assert (second.read(ids) == UNIFORM.make(ids, 3)).all()


def test_more_rows_than_there_are_is_no_message() -> None:
    assert [shape.size for shape in RowShapes(10, 3).pushed(4)] == [4, 12]
    for rows in (-1, 11):
        with pytest.raises(BadFrame, match="rows are said to come"):
            RowShapes(10, 3).asked(rows)
