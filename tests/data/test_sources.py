"""Whatever the source and however many workers: every sample of an epoch is taken once, by its piece's owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collectives.tree import shares
from shoal.data.order import piece_bounds, pieces_of
from shoal.data.sources import AbstractSource, Arrays, Batches, Items, Rows, Spec, Stream
from shoal.errors import CannotDistribute

PIECES = 6


def rows_by_rank(workers: int) -> Callable[[int], Sequence[range]]:
    def split(size: int) -> Sequence[range]:
        used = pieces_of(size, PIECES)
        bounds = piece_bounds(size, used)
        return [range(bounds[s.start], bounds[s.stop]) for s in shares(used, (1.0,) * workers)]

    return split


def epoch(source: AbstractSource, rank: int, workers: int, number: int = 0, initial: int = 0) -> list[list[int]]:
    """The samples that a rank takes, step by step."""
    source.begin(number, initial)
    taken = []
    step = 0
    while source.steps is None or step < source.steps:
        part = source.take(step, rows_by_rank(workers), rank)
        if part is None:
            break
        taken.append(part.rows[0].reshape(-1).tolist())
        step += 1
    source.end()
    return taken


def arrays(count: int, batch: int, **settings: Any) -> Arrays:
    return Arrays([np.arange(count), np.arange(count) * 2], {"tuple": ["leaf", "leaf"]}, batch, **settings)


def items(count: int, batch: int, loaded: list[int] | None = None, **settings: Any) -> Items:
    def load(indices: Sequence[int]) -> Rows:
        if loaded is not None:
            loaded.extend(indices)
        return [np.array(indices)]

    return Items(load, Spec("leaf", ("int64",), ((),)), count, batch, **{"seed": None, "drop_last": False, **settings})


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


def test_shuffling_whole_batches_keeps_their_samples_together() -> None:
    steps = epoch(arrays(20, 6, seed=1, shuffle_batches=True), 0, 1)
    assert sorted(steps) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17], [18, 19]]
    assert steps[-1] == [18, 19]


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
    first = source.take(0, rows_by_rank(2), 1)
    second = source.take(1, rows_by_rank(3), 1)
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

    spec = Spec("leaf", ("int64",), ((),))
    source = Batches(load, spec, 6, None, None, lambda: events.append("begin"), lambda: events.append("end"))
    try:
        assert epoch(source, 0, 2)[0] == [0, 1]
        assert events == ["begin", "end"]
        asked.clear()
        source.begin(1, wanted=lambda step: step % 2 == 1)
        for step in (1, 3, 5):
            taken = source.take(step, lambda size: [range(size)], 0)
            assert taken is not None
            assert taken.rows[0][0] == 4 * step
        assert asked == [1, 3, 5]
    finally:
        source.close()


class Scene:
    """A chief and its workers in threads, with a hand-out between them."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._barrier = threading.Barrier(workers, timeout=10)
        self._given: tuple[bytes, Sequence[Rows] | None] = (b"", None)

    def scatter(self, rank: int) -> Callable[[bytes, Sequence[Rows] | None], tuple[bytes, Rows]]:
        def hand_out(header: bytes, parts: Sequence[Rows] | None) -> tuple[bytes, Rows]:
            if rank == 0:
                self._given = (header, parts)
            self._barrier.wait()
            header, parts = self._given
            self._barrier.wait()
            return header, list(parts[rank]) if parts is not None else []

        return hand_out

    def run(self, act: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.workers

        def worker(rank: int) -> None:
            results[rank] = act(rank)

        threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(self.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


def stream(scene: Scene, rank: int, batches: list[Rows], steps: int | None, goes_on: bool = False) -> Stream:
    def first() -> tuple[Rows, Any] | None:
        return (batches[0], "leaf") if batches else None

    return Stream(lambda: iter(batches), first, scene.scatter(rank), rank == 0, steps, goes_on)


@pytest.mark.parametrize("steps", [None, 3])
def test_a_stream_is_read_by_the_chief_and_every_sample_is_handed_out_once(steps: int | None) -> None:
    scene = Scene(3)
    batches = [[np.arange(7) + 10 * i] for i in range(3)] + ([[np.array([99])]] if steps is None else [])

    def act(rank: int) -> list[list[list[int]]]:
        source = stream(scene, rank, batches if rank == 0 else [], steps)
        source.spec()
        try:
            return [epoch(source, rank, 3), epoch(source, rank, 3)]
        finally:
            source.close()

    for epochs in zip(*scene.run(act), strict=True):
        taken = [[sample for rank in epochs for sample in rank[step]] for step in range(len(batches))]
        assert taken == [batch[0].tolist() for batch in batches]


def test_a_stream_goes_on_where_the_last_epoch_stopped() -> None:
    scene = Scene(1)
    source = stream(scene, 0, [[np.array([i, i])] for i in range(4)], steps=2, goes_on=True)
    try:
        source.spec()
        assert [epoch(source, 0, 1, number) for number in range(3)] == [
            [[0, 0], [1, 1]],
            [[2, 2], [3, 3]],
            [[0, 0], [1, 1]],
        ]
    finally:
        source.close()


def test_a_stream_without_a_batch_is_refused() -> None:
    source = stream(Scene(1), 0, [], None)
    try:
        with pytest.raises(CannotDistribute, match="no batch"):
            source.spec()
    finally:
        source.close()
