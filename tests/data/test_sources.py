"""Whatever the source and however many workers: every sample of an epoch is taken once, by its piece's owner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collectives.tree import shares
from shoal.data.order import piece_bounds, pieces_of
from shoal.data.sources import AbstractSource, Arrays, Batches, Items, Rows, Spec, Stream
from shoal.errors import CannotDistribute, ViewChanged

PIECES = 6
LEAF = Spec("leaf", ("int64",), ((),), 1)


class Place:
    """A worker's place beside a wire. The chief takes first: what it hands out lies there for the others."""

    def __init__(self, rank: int, size: int, wire: list[tuple[str, bytes, Sequence[Rows]]] | None = None) -> None:
        self.rank = rank
        self.size = size
        self._wire = wire
        self.broken = False  # the view changes just as something is handed out

    def scatter(self, what: str, parts: Sequence[Rows] | None, header: bytes = b"") -> tuple[bytes, Rows]:
        assert self._wire is not None, "a source that is indexed asks nobody"
        if self.broken:
            raise ViewChanged(2)
        if self.rank == 0:
            assert parts is not None
            assert len(parts) == self.size
            self._wire[:] = [(what, header, parts)]
        expected, header, parts = self._wire[0]
        assert what == expected
        return header, list(parts[self.rank])


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
        part = source.take(step, rows_by_rank(workers), Place(rank, workers))
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

    source = Batches(load, LEAF, 6, None, None, lambda: events.append("begin"), lambda: events.append("end"))
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


class Company:
    """Workers that take a stream together, each with a copy of its own. Who dies is taken out of `streams`."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = list(streams)
        peeked = self.streams[0].peek()
        for stream in self.streams:
            stream.know(peeked)

    def begin(self, epoch: int = 0, first: int = 0) -> None:
        for stream in self.streams:
            stream.begin(epoch, first=first)

    def take(self, step: int) -> list[int] | None:
        """The samples of a step, in the order of the ranks; each is handed out once. None at the end."""
        wire: list[tuple[str, bytes, Sequence[Rows]]] = []
        size = len(self.streams)
        taken = [s.take(step, rows_by_rank(size), Place(r, size, wire)) for r, s in enumerate(self.streams)]
        parts = [part for part in taken if part is not None]
        assert len(parts) in (0, size), "they disagree on the end"
        if not parts:
            return None
        bounds = [(part.first, part.first + len(part.rows[0])) for part in parts]
        assert [low for low, _ in bounds] == [0, *(high for _, high in bounds[:-1])]
        assert {part.size for part in parts} == {bounds[-1][1]}
        return [sample for part in parts for sample in part.rows[0].tolist()]

    def rest(self, first: int = 0) -> list[list[int]]:
        """All steps of the epoch from `first` on."""
        taken = []
        for step in itertools.count(first):
            if self.streams[0].steps is not None and step == self.streams[0].steps:
                break
            if (samples := self.take(step)) is None:
                break
            taken.append(samples)
        for stream in self.streams:
            stream.end()
        return taken

    def epoch(self, number: int = 0) -> list[list[int]]:
        self.begin(number)
        return self.rest()

    def lose_chief(self) -> None:
        self.streams.pop(0).close()

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


@pytest.fixture
def company() -> Iterator[Callable[..., Company]]:
    """`company(workers, batches, …)`: each worker has its own copy of a stream of these batches."""
    made: list[Company] = []

    def company(workers: int, batches: Sequence[Sequence[int]], **settings: Any) -> Company:
        made.append(Company([stream(batches, **settings) for _ in range(workers)]))
        return made[-1]

    yield company
    for one in made:
        one.close()


def stream(
    batches: Sequence[Sequence[int]],
    steps: int | None = None,
    goes_on: bool = False,
    keeps: bool = False,
    read: list[int] | None = None,
) -> Stream:
    """With `keeps` its data is a generator that can be read once only."""
    all_rows = [[np.array(batch)] for batch in batches]

    def given() -> Iterator[Rows]:
        for number, rows in enumerate(all_rows):
            if read is not None:
                read.append(number)
            yield rows

    once = given()
    return Stream(
        "fit",
        (lambda: once) if keeps else given,
        lambda: (all_rows[0], "leaf") if all_rows else None,
        steps,
        goes_on,
        keeps,
    )


def numbered(count: int, size: int = 7) -> list[list[int]]:
    """Batches whose samples tell where they belong."""
    return [[100 * number + sample for sample in range(size)] for number in range(count)]


@pytest.mark.parametrize("steps", [None, 3])
def test_a_stream_is_read_by_the_chief_and_every_sample_is_handed_out_once(steps: int | None) -> None:
    batches = numbered(3) + ([[99]] if steps is None else [])
    read: list[int] = []
    among = Company([stream(batches, steps, read=read), stream(batches, steps), stream(batches, steps)])
    try:
        assert [among.epoch(0), among.epoch(1)] == [batches, batches]
    finally:
        among.close()
    assert read == [*range(len(batches))] * 2


def test_only_the_chief_reads() -> None:
    read: list[int] = []
    among = Company([stream(numbered(2)), stream(numbered(2), read=read)])
    try:
        assert among.epoch() == numbered(2)
    finally:
        among.close()
    assert read == []


def test_a_stream_goes_on_where_the_last_epoch_stopped(company: Callable[..., Company]) -> None:
    batches = numbered(4)
    among = company(1, batches, steps=2, goes_on=True)
    assert [among.epoch(number) for number in range(3)] == [batches[:2], batches[2:], batches[:2]]


def test_an_epoch_ends_early_when_a_stream_is_used_up_and_the_next_starts_it_anew(
    company: Callable[..., Company],
) -> None:
    batches = numbered(3)
    among = company(2, batches, steps=2, goes_on=True)
    assert [among.epoch(number) for number in range(4)] == [batches[:2], batches[2:], batches[:2], batches[2:]]


def test_a_stream_without_a_batch_is_refused() -> None:
    source = stream([])
    try:
        with pytest.raises(CannotDistribute, match="no batch"):
            source.know(source.peek())
    finally:
        source.close()


def test_a_batch_without_samples_is_refused(company: Callable[..., Company]) -> None:
    among = company(1, [[1, 2], []])
    among.begin()
    among.take(0)
    with pytest.raises(CannotDistribute, match="without samples at step 1"):
        among.take(1)


def test_a_chief_that_is_asked_again_what_its_batches_look_like_does_not_read_again() -> None:
    reads = []
    source = Stream("fit", lambda: iter([]), lambda: reads.append(1) or ([np.arange(3)], "leaf"), None, False)
    try:
        assert source.peek() == source.peek()
        assert reads == [1]
    finally:
        source.close()


# The chief dies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("lost_at", range(1, 5))
def test_the_next_chief_goes_to_the_same_place_in_its_own_copy(
    lost_at: int, goes_on: bool, company: Callable[..., Company]
) -> None:
    batches = numbered(12)
    among = company(3, batches, steps=5 if goes_on else None, goes_on=goes_on)
    expected = [batches[5:10], batches[10:]] if goes_on else [batches, batches]
    among.epoch(0)
    among.begin(1)
    taken = [among.take(step) for step in range(lost_at)]
    among.lose_chief()
    assert taken + among.rest(lost_at) == expected[0]
    among.lose_chief()  # and the third after it, between two epochs
    assert among.epoch(2) == expected[1]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_whose_chief_died_in_the_middle_of_it_is_given_whole_by_the_next(
    goes_on: bool, company: Callable[..., Company]
) -> None:
    batches = numbered(4)
    among = company(3, batches, steps=4, goes_on=goes_on)
    among.begin()
    assert [among.take(0), among.take(1)] == batches[:2]
    among.lose_chief()  # some had their rows of step 1 already; it did not count
    assert among.rest(1) == batches[1:]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_taken_twice_gives_the_same_batch(goes_on: bool, keeps: bool, company: Callable[..., Company]) -> None:
    batches = numbered(4)
    among = company(3, batches, steps=4, goes_on=goes_on, keeps=keeps)
    among.begin()
    among.take(0)
    for _ in range(3):
        assert among.take(1) == batches[1]
    among.streams.pop().close()  # with other shares too
    assert among.take(1) == batches[1]
    assert among.rest(2) == batches[2:]


def test_a_stream_that_was_started_anew_is_at_the_same_place_for_the_next_chief(
    company: Callable[..., Company],
) -> None:
    batches = numbered(4)
    among = company(2, batches, steps=2, goes_on=True)
    among.epoch(0)
    among.epoch(1)
    among.begin(2)
    assert among.take(0) == batches[0]
    among.lose_chief()
    assert among.take(1) == batches[1]


def test_a_stream_that_was_started_anew_in_a_step_that_did_not_count_is_at_the_same_place(
    company: Callable[..., Company],
) -> None:
    batches = numbered(4)
    among = company(2, batches, steps=2, goes_on=True)
    among.epoch(0)
    among.epoch(1)
    among.begin(2)
    place = Place(0, 2, [])
    place.broken = True
    with pytest.raises(ViewChanged):
        among.streams[0].take(0, rows_by_rank(2), place)
    assert among.take(0) == batches[0]
    among.lose_chief()
    assert among.take(1) == batches[1]


# An epoch is begun again, or in its middle ----------------------------------------------------------------


@pytest.mark.parametrize("got", [0, 1, 3])
def test_a_generator_that_is_kept_can_be_begun_again(got: int, company: Callable[..., Company]) -> None:
    batches = numbered(9)
    among = company(2, batches, steps=3, goes_on=True, keeps=True)
    assert among.epoch(0) == batches[:3]
    place = among.streams[0].place_in_stream(0)
    among.begin(0)
    for step in range(got):
        among.take(step)
    for again in among.streams:  # the view has changed: all of it once more
        again.go_to(place)
    assert among.epoch(0) == batches[3:6]
    assert among.epoch(0) == batches[6:]


def test_a_generator_that_is_kept_is_begun_again_by_the_next_chief(company: Callable[..., Company]) -> None:
    batches = numbered(6)
    among = company(2, batches, steps=3, goes_on=True, keeps=True)
    among.epoch(0)
    place = among.streams[1].place_in_stream(0)
    among.begin(0)
    among.take(0)
    among.lose_chief()
    among.streams[0].go_to(place)
    assert among.epoch(0) == batches[3:]


def test_a_kept_batch_is_let_go_when_the_next_epoch_begins(company: Callable[..., Company]) -> None:
    among = company(1, numbered(9), steps=3, goes_on=True, keeps=True)
    for _ in range(3):
        among.epoch()
    among.begin()
    assert among.streams[0]._kept == {}


def by_name(name: str, seed: int | None = None) -> AbstractSource:
    """25 samples in batches of 4, or as many."""

    def load(index: int) -> Rows:
        return [np.arange(25)[4 * index : 4 * index + 4]]

    if name == "arrays":
        return arrays(25, 4, seed=seed)
    if name == "items":
        return items(25, 4, seed=seed)
    return Batches(load, LEAF, 7, seed)


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


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_newcomer_takes_its_rows_of_a_stream_from_the_middle_on_and_can_become_its_chief(
    goes_on: bool, company: Callable[..., Company]
) -> None:
    batches = numbered(10)
    among = company(1, batches, steps=5, goes_on=goes_on)
    epoch = batches[5:] if goes_on else batches[:5]
    among.epoch(0)
    among.begin(1)
    taken = [among.take(step) for step in range(2)]
    newcomer = stream(batches, 5, goes_on)
    newcomer.know(newcomer.peek())
    newcomer.go_to(among.streams[0].place_in_stream(2))
    newcomer.begin(1, first=2)
    among.streams.append(newcomer)
    taken.append(among.take(2))
    among.lose_chief()
    assert taken + among.rest(3) == epoch


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


def test_a_stream_has_an_order_of_its_own(company: Callable[..., Company]) -> None:
    among = company(1, numbered(3))
    among.streams[0].use_seed(3)
    assert among.epoch() == numbered(3)


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
