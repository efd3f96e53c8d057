"""Whatever the source and however many workers: every sample of an epoch is taken once, by its piece's owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.columns import Rows, dense
from shoal.data.sources import AbstractSource, Arrays, Batches, BatchSeries, HandedOut, Items, Spec

from .places import Place, rows_by_rank

LEAF = Spec("leaf", (dense("int64", ()),), 1)


def epoch(source: AbstractSource, rank: int, workers: int, number: int = 0, initial: int = 0) -> list[list[int]]:
    """The samples that a rank takes, step by step."""
    source.begin(number, initial)
    taken = []
    step = 0
    while source.steps is None or step < source.steps:
        part = source.take(step, rows_by_rank(workers), Place(rank, workers))
        if part is None:
            break
        taken.append(part.rows[0].reshape(-1).tolist())
        step += 1
    source.end(step)
    return taken


def arrays(count: int, batch: int, **settings: Any) -> Arrays:
    return Arrays([np.arange(count), np.arange(count) * 2], {"tuple": ["leaf", "leaf"]}, batch, **settings)


def items(count: int, batch: int, loaded: list[int] | None = None, **settings: Any) -> Items:
    def load(indices: Sequence[int]) -> Rows:
        if loaded is not None:
            loaded.extend(indices)
        return [np.array(indices)]

    return Items(load, LEAF, count, batch, **{"seed": None, "drop_last": False, **settings})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 5), st.sampled_from([None, 0, 9]), st.booleans())
def test_every_sample_is_taken_once_per_epoch(
    count: int, batch: int, workers: int, seed: int | None, by_item: bool
) -> None:
    source = (items if by_item else arrays)(count, batch, seed=seed)
    taken = [epoch(source, rank, workers) for rank in range(workers)]
    assert sorted(sample for rank in taken for step in rank for sample in step) == list(range(count))
    alone = epoch(source, 0, 1)
    source.close()
    joined = [[sample for rank in taken for sample in rank[step]] for step in range(len(alone))]
    assert joined == alone  # and in the order of one machine


def test_orders_differ_from_epoch_to_epoch_and_come_back() -> None:
    source = arrays(40, 8, seed=3)
    first, second, again = (epoch(source, 0, 1, number) for number in (0, 1, 0))
    assert first != second
    assert first == again


def test_shuffling_within_batches_keeps_their_samples_together() -> None:
    steps = epoch(arrays(20, 6, seed=1, within_batches=True), 0, 1)
    in_order = [[*range(6)], [*range(6, 12)], [*range(12, 18)], [18, 19]]
    assert [sorted(step) for step in steps] == in_order  # as Keras does it
    assert steps != in_order


def test_shorter_epochs_go_on_where_the_last_one_stopped() -> None:
    source = arrays(20, 4, seed=None, steps=2)
    assert [len(epoch(source, 0, 1, number, 3)) for number in (3, 4, 5, 6)] == [2, 2, 1, 2]
    assert epoch(source, 0, 1, 4, 3) == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert epoch(source, 0, 1, 6, 3)[0] == [0, 1, 2, 3]


def test_a_map_style_worker_loads_its_own_samples_only() -> None:
    loaded: list[int] = []
    source = items(24, 12, loaded)
    epoch(source, 1, 3)
    source.close()
    assert loaded == [4, 5, 6, 7, 16, 17, 18, 19]


def test_what_was_read_ahead_for_other_shares_is_read_again() -> None:
    source = items(24, 12)
    source.begin(0)
    first = source.take(0, rows_by_rank(2), Place(1, 2))
    second = source.take(1, rows_by_rank(3), Place(1, 3))
    source.close()
    assert first is not None
    assert second is not None
    assert first.rows[0].tolist() == [6, 7, 8, 9, 10, 11]
    assert second.rows[0].tolist() == [16, 17, 18, 19]


def test_a_dropped_last_batch_is_not_taken() -> None:
    source = items(10, 4, drop_last=True)
    assert epoch(source, 0, 1) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    source.close()


def test_batches_are_loaded_ahead_and_only_those_that_are_wanted() -> None:
    asked: list[int] = []
    events: list[str] = []

    def load(index: int) -> Rows:
        asked.append(index)
        return [np.arange(4) + 4 * index]

    begins, ends = (lambda: events.append("begin")), (lambda: events.append("end"))
    source = Batches(load, BatchSeries(LEAF, 6, None, on_epoch_begin=begins, on_epoch_end=ends))
    try:
        assert epoch(source, 0, 2)[0] == [0, 1]
        assert events == ["begin", "end"]
        asked.clear()
        source.begin(1, wanted=lambda step: step % 2 == 1)
        for step in (1, 3, 5):
            taken = source.take(step, lambda size: [range(size)], Place(0, 1))
            assert taken is not None
            assert taken.rows[0][0] == 4 * step
        assert asked == [1, 3, 5]
    finally:
        source.close()


@pytest.mark.parametrize("name", ["arrays", "items", "batches"])
def test_what_the_chief_hands_out_is_its_own_whatever_the_others_have(name: str) -> None:
    mine, others = by_name(name), items(7, 2)
    spec, steps = mine.spec(), mine.steps
    sources = [HandedOut("fit", inner, spec, steps) for inner in (mine, others)]
    try:
        for source in sources:
            source.begin(0, wanted=lambda step: False)
        taken: list[int] = []
        for step in range(7):
            wire: list[tuple[str, bytes, Any]] = []
            parts = [source.take(step, rows_by_rank(2), Place(rank, 2, wire)) for rank, source in enumerate(sources)]
            taken += [sample for part in parts if part is not None for sample in part.rows[0].tolist()]
        assert taken == [*range(25)]
    finally:
        for source in sources:
            source.close()


def by_name(name: str, seed: int | None = None) -> AbstractSource:
    """25 samples in batches of 4, or as many."""

    def load(index: int) -> Rows:
        return [np.arange(25)[4 * index : 4 * index + 4]]

    if name == "arrays":
        return arrays(25, 4, seed=seed)
    if name == "items":
        return items(25, 4, seed=seed)
    return Batches(load, BatchSeries(LEAF, 7, seed))


each_indexed = pytest.mark.parametrize("name", ["arrays", "items", "batches"])


@each_indexed
@pytest.mark.parametrize("first", [0, 1, 6])
def test_who_begins_an_epoch_in_its_middle_takes_what_the_others_take(name: str, first: int) -> None:
    early, late = by_name(name, seed=5), by_name(name, seed=5)
    try:
        expected = epoch(early, 1, 2, number=1)
        late.begin(1, first=first)
        taken = [late.take(step, rows_by_rank(2), Place(1, 2)) for step in range(first, 7)]
        assert [part.rows[0].tolist() for part in taken if part] == expected[first:]
    finally:
        early.close()
        late.close()


@each_indexed
def test_a_step_may_be_taken_again_with_another_share(name: str) -> None:
    source = by_name(name)
    try:
        source.begin(0)
        for workers in (3, 2, 2, 1, 3):
            part = source.take(0, rows_by_rank(workers), Place(workers - 1, workers))
            assert part is not None
            assert part.rows[0].tolist() == [*rows_by_rank(workers)(4)[workers - 1]]
        after = source.take(1, rows_by_rank(1), Place(0, 1))
        assert after is not None
        assert after.rows[0].tolist() == [4, 5, 6, 7]
    finally:
        source.close()


@each_indexed
def test_a_newcomer_shuffles_by_the_seed_of_the_others(name: str) -> None:
    one, other = by_name(name, seed=3), by_name(name, seed=4)
    try:
        expected = epoch(one, 0, 1)
        assert epoch(other, 0, 1) != expected
        other.use_seed(3)
        assert epoch(other, 0, 1) == expected
    finally:
        one.close()
        other.close()


@each_indexed
def test_data_that_is_not_shuffled_stays_in_order_whatever_the_seed(name: str) -> None:
    source = by_name(name, seed=None)
    try:
        source.use_seed(3)
        assert [sample for step in epoch(source, 0, 1) for sample in step] == [*range(25)]
    finally:
        source.close()


# What errors say ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [arrays, items])
@pytest.mark.parametrize("seed", [None, 5])
def test_an_error_can_name_the_samples_of_any_rows(make: Callable[..., AbstractSource], seed: int | None) -> None:
    source = make(20, 8, seed=seed)
    taken = epoch(source, 0, 1)
    for step, samples in enumerate(taken):
        assert source.names(step, range(2, 4)) == f"samples {samples[2]}, {samples[3]}"
        assert source.names(step, range(1)) == f"sample {samples[0]}"
    source.close()


def test_of_many_samples_the_first_are_named() -> None:
    source = arrays(40, 20, seed=None)
    source.begin(0)
    assert source.names(1, range(20)) == "samples 20, 21, 22, 23, 24, 25, 26, 27 and 12 more"


def test_an_error_in_the_users_data_names_what_was_loaded() -> None:
    def load(indices: Sequence[int]) -> Rows:
        raise OSError("cannot read the image")

    source = Items(load, LEAF, 10, 4, seed=None, drop_last=False)
    source.begin(0)
    with pytest.raises(OSError, match="cannot read the image") as caught:
        source.take(0, rows_by_rank(2), Place(1, 2))
    assert caught.value.__notes__ == ["shoal: while loading samples 2, 3"]
    source.close()
