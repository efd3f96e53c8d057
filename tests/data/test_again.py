"""Steps of a round may be taken again, all of them, until the next round is held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shoal.collectives.alone import Alone
from shoal.data.sources import AbstractSource, Arrays, Batches, BatchSeries, Items, Spec
from shoal.data.sources.handed_out import HandedOut
from shoal.data.sources.row_batches import RowBatches
from shoal.data.sources.sharded_stream import ShardedStream
from shoal.data.sources.stream import Once, Stream
from shoal.errors import CannotDistribute

ROWS = np.arange(40)
SPEC = Spec.of([ROWS[:8]], "leaf")


def stream() -> Stream:
    made = Stream("fit", Once(iter(ROWS.reshape(5, 8))), lambda batch: ([batch], "leaf"), None)
    made.know(made.peek())
    return made


def sharded() -> ShardedStream:
    """Two of them, with four rows of each batch."""
    halves = ROWS.reshape(5, 2, 4)
    made = ShardedStream("fit", lambda shard, number: list(halves[:, shard]), 2, lambda batch: ([batch], "leaf"), None)
    made.know(made.peek())
    return made


SOURCES: dict[str, Callable[[], AbstractSource]] = {
    "arrays": lambda: Arrays([ROWS], "leaf", 8, seed=3),
    "items": lambda: Items(lambda places: [ROWS[places]], SPEC, 40, 8, 3, False),
    "batches": lambda: Batches(lambda number: [ROWS[number * 8 : number * 8 + 8]], BatchSeries(SPEC, 5, 3)),
    "rows of batches": lambda: RowBatches(
        lambda number: 8, lambda number, held: [ROWS[number * 8 :][held.start : held.stop]], BatchSeries(SPEC, 5, 3)
    ),
    "shards": lambda: sharded(),
    "handed out": lambda: HandedOut(
        "fit", Batches(lambda n: [ROWS[n * 8 : n * 8 + 8]], BatchSeries(SPEC, 5, 3)), SPEC, 5
    ),
    "a generator": stream,
}


def take(source: AbstractSource, steps: range) -> list[list[int]]:
    taken = [source.take(step, lambda size: [range(size)], Alone("worker-0")) for step in steps]
    return [one.rows[0].tolist() for one in taken if one is not None]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_round_that_is_begun_anew_has_the_same_rows(kind: str) -> None:
    source = SOURCES[kind]()
    source.begin(0)
    source.hold(0)
    first = take(source, range(2))
    source.hold(2)
    tried = take(source, range(2, 4))  # somebody was lost after its second step
    for _ in range(2):
        source.again(2)
        assert take(source, range(2, 4)) == tried
    rest = take(source, range(4, 6))
    source.close()
    assert sorted(sample for batch in (*first, *tried, *rest) for sample in batch) == ROWS.tolist()


def test_a_generator_keeps_nothing_of_rounds_that_count() -> None:
    source = stream()
    source.begin(0)
    source.hold(0)
    take(source, range(2))
    source.hold(2)
    assert not source._kept
    take(source, range(2, 3))
    assert list(source._kept) == [2]
    with pytest.raises(CannotDistribute, match="needed again"):
        take(source, range(1))
    source.close()
