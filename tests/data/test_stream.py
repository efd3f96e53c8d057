"""A stream is read once, by the chief; whoever is the chief next goes on at the same place."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from shoal.data.sources.stream import Once, Restartable, Stream
from shoal.errors import CannotDistribute, ViewChanged

from .places import Arrays, Place, rows_by_rank


class Workers:
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
        wire: list[tuple[str, bytes, Sequence[Arrays]]] = []
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
            stream.end(first + len(taken))
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
def worker_group() -> Iterator[Callable[..., Workers]]:
    """`worker_group(workers, batches, …)`: each worker has its own copy of a stream of these batches."""
    made: list[Workers] = []

    def worker_group(workers: int, batches: Sequence[Sequence[int]], **settings: Any) -> Workers:
        made.append(Workers([stream(batches, **settings) for _ in range(workers)]))
        return made[-1]

    yield worker_group
    for one in made:
        one.close()


def stream(
    batches: Sequence[Sequence[int]],
    steps: int | None = None,
    goes_on: bool = False,
    once: bool = False,
    count: int | None = None,
    read: list[int] | None = None,
) -> Stream:
    """With `once` its data is a generator that can be read once only; if it does not go on, it is for validation."""

    def given() -> Iterator[list[int]]:
        for number, batch in enumerate(batches):
            if read is not None:
                read.append(number)
            yield list(batch)

    reader = Once(given()) if once else Restartable(given)
    return Stream("fit", reader, lambda batch: ([np.array(batch)], "leaf"), steps, count, goes_on, once and not goes_on)


def numbered(count: int, size: int = 7) -> list[list[int]]:
    """Batches whose samples tell where they belong."""
    return [[100 * number + sample for sample in range(size)] for number in range(count)]


@pytest.mark.parametrize("steps", [None, 3])
def test_a_stream_is_read_by_the_chief_and_every_sample_is_handed_out_once(steps: int | None) -> None:
    batches = numbered(3) + ([[99]] if steps is None else [])
    read: list[int] = []
    among = Workers([stream(batches, steps, read=read), stream(batches, steps), stream(batches, steps)])
    try:
        assert [among.epoch(0), among.epoch(1)] == [batches, batches]
    finally:
        among.close()
    assert read == [*range(len(batches))] * 2


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("steps", [None, 3])
def test_the_chief_knows_whether_a_step_is_the_last_and_the_step_can_still_be_taken_again(
    steps: int | None, once: bool, worker_group: Callable[..., Workers]
) -> None:
    workers = worker_group(2, numbered(3), steps=steps, once=once)
    workers.begin()
    for step in range(3):
        batch = workers.take(step)
        assert workers.streams[0].ends_after(step) == (step == 2)
        assert workers.take(step) == batch
    assert steps is not None or workers.take(3) is None


def test_only_the_chief_reads() -> None:
    read: list[int] = []
    among = Workers([stream(numbered(2)), stream(numbered(2), read=read)])
    try:
        assert among.epoch() == numbered(2)
    finally:
        among.close()
    assert read == []


def test_a_stream_goes_on_where_the_last_epoch_stopped(worker_group: Callable[..., Workers]) -> None:
    batches = numbered(4)
    among = worker_group(1, batches, steps=2, goes_on=True, count=4)
    assert [among.epoch(number) for number in range(3)] == [batches[:2], batches[2:], batches[:2]]


@pytest.mark.parametrize("count", [None, 3])
def test_an_epoch_ends_early_when_a_stream_is_used_up_and_the_next_starts_it_anew(
    count: int | None, worker_group: Callable[..., Workers]
) -> None:
    batches = numbered(3)
    among = worker_group(2, batches, steps=2, goes_on=True, count=count)
    assert [among.epoch(number) for number in range(4)] == [batches[:2], batches[2:], batches[:2], batches[2:]]


def test_a_stream_of_unknown_length_that_is_used_up_with_its_epoch_leaves_the_next_one_empty(
    worker_group: Callable[..., Workers],
) -> None:
    batches = numbered(4)
    among = worker_group(2, batches, steps=2, goes_on=True)
    assert [among.epoch(number) for number in range(4)] == [batches[:2], batches[2:], [], batches[:2]]  # as in Keras


# Generators: every pass begins with the first two batches again, as in Keras ------------------------------


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_every_validation_on_a_generator_begins_with_its_first_two_batches(
    lost: int | None, worker_group: Callable[..., Workers]
) -> None:
    among = worker_group(2, numbered(6, 1), steps=3, once=True)
    seen = []
    for number in range(5):
        if number == lost:
            among.lose_chief()
        seen.append([samples[0] // 100 for samples in among.epoch()])
    assert seen == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 5], [0, 1]]


def test_a_generator_without_steps_is_read_to_its_end_and_then_gives_its_first_two_batches(
    worker_group: Callable[..., Workers],
) -> None:
    batches = numbered(5)
    among = worker_group(2, batches, once=True)
    assert [among.epoch(number) for number in range(3)] == [batches, batches[:2], batches[:2]]


@pytest.mark.parametrize("lost", [None, 0, 1, 2, 3])
def test_a_generator_with_steps_goes_on_until_it_ends(lost: int | None, worker_group: Callable[..., Workers]) -> None:
    batches = numbered(6)
    among = worker_group(2, batches, steps=4, goes_on=True, once=True)
    seen = []
    for number in range(4):
        if number == lost:
            among.lose_chief()
        seen.append(among.epoch(number))
    assert seen == [batches[:4], batches[4:], batches[:2], batches[:2]]


def test_a_generator_is_asked_for_no_more_than_keras_would(worker_group: Callable[..., Workers]) -> None:
    read: list[int] = []
    among = worker_group(1, numbered(9), steps=3, goes_on=True, once=True, read=read)
    among.epoch(0)
    assert read == [0, 1, 2]
    read.clear()
    worker_group(1, numbered(9), steps=1, once=True, read=read).epoch()
    assert read == [0, 1]  # the two that Keras reads to learn what batches look like


def test_a_stream_without_a_batch_is_refused() -> None:
    source = stream([])
    try:
        with pytest.raises(CannotDistribute, match="no batch"):
            source.know(source.peek())
    finally:
        source.close()


def test_a_batch_without_samples_is_refused(worker_group: Callable[..., Workers]) -> None:
    among = worker_group(1, [[1, 2], []])
    among.begin()
    among.take(0)
    with pytest.raises(CannotDistribute, match="without samples at step 1"):
        among.take(1)


def test_a_chief_that_is_asked_again_what_its_batches_look_like_does_not_read_again() -> None:
    reads = []
    source = Stream("fit", Restartable(lambda: reads.append(1) or iter([3])), lambda _: ([np.arange(3)], "leaf"), None)
    try:
        assert source.peek() == source.peek()
        assert reads == [1]
    finally:
        source.close()


# The chief dies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("lost_at", range(1, 5))
def test_the_next_chief_goes_to_the_same_place_in_its_own_copy(
    lost_at: int, goes_on: bool, worker_group: Callable[..., Workers]
) -> None:
    batches = numbered(12)
    among = worker_group(3, batches, steps=5 if goes_on else None, goes_on=goes_on)
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
    goes_on: bool, worker_group: Callable[..., Workers]
) -> None:
    batches = numbered(4)
    among = worker_group(3, batches, steps=4, goes_on=goes_on)
    among.begin()
    assert [among.take(0), among.take(1)] == batches[:2]
    among.lose_chief()  # some had their rows of step 1 already; it did not count
    assert among.rest(1) == batches[1:]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_taken_twice_gives_the_same_batch(
    goes_on: bool, once: bool, worker_group: Callable[..., Workers]
) -> None:
    batches = numbered(4)
    among = worker_group(3, batches, steps=4, goes_on=goes_on, once=once)
    among.begin()
    among.take(0)
    for _ in range(3):
        assert among.take(1) == batches[1]
    among.streams.pop().close()  # with other shares too
    assert among.take(1) == batches[1]
    assert among.rest(2) == batches[2:]


def test_a_stream_that_was_started_anew_is_at_the_same_place_for_the_next_chief(
    worker_group: Callable[..., Workers],
) -> None:
    batches = numbered(4)
    among = worker_group(2, batches, steps=2, goes_on=True, count=4)
    among.epoch(0)
    among.epoch(1)
    among.begin(2)
    assert among.take(0) == batches[0]
    among.lose_chief()
    assert among.take(1) == batches[1]


def test_a_stream_that_was_started_anew_in_a_step_that_did_not_count_is_at_the_same_place(
    worker_group: Callable[..., Workers],
) -> None:
    batches = numbered(4)
    among = worker_group(2, batches, steps=2, goes_on=True, count=4)
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
def test_a_validation_on_a_generator_can_be_begun_again(got: int, worker_group: Callable[..., Workers]) -> None:
    batches = numbered(9)
    among = worker_group(2, batches, steps=3, once=True)
    assert among.epoch(0) == batches[:3]
    mark = among.streams[0].bookmark(0)
    among.begin(0)
    for step in range(got):
        among.take(step)
    if got == 3:  # it was over for those who are left
        for stream in among.streams:
            stream.end(3)
    for again in among.streams:  # the view has changed: all of it once more
        again.go_to(mark)
    assert among.epoch(0) == [*batches[:2], batches[3]]
    assert among.epoch(0) == [*batches[:2], batches[4]]


def test_a_validation_on_a_generator_is_begun_again_by_the_next_chief(worker_group: Callable[..., Workers]) -> None:
    batches = numbered(6)
    among = worker_group(2, batches, steps=3, once=True)
    among.epoch(0)
    mark = among.streams[1].bookmark(0)
    among.begin(0)
    among.take(0)
    among.lose_chief()
    among.streams[0].go_to(mark)
    assert among.epoch(0) == [*batches[:2], batches[3]]


def test_kept_batches_are_let_go_when_the_next_validation_begins(worker_group: Callable[..., Workers]) -> None:
    among = worker_group(1, numbered(9), steps=3, once=True)
    for _ in range(3):
        among.epoch()
    among.begin()
    assert among.streams[0]._kept == {}


def test_what_is_too_large_to_be_kept_can_not_be_begun_again(
    worker_group: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.data.sources.stream._KEPT_LIMIT", 100)
    among = worker_group(1, numbered(9), steps=5, once=True)
    mark = among.streams[0].bookmark(0)
    assert among.epoch() == numbered(5)
    assert among.streams[0]._kept == {}
    among.streams[0].go_to(mark)
    among.begin()
    with pytest.raises(CannotDistribute, match=r"batch 0 of a generator is needed again.*PyDataset"):
        among.take(0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_newcomer_takes_its_rows_of_a_stream_from_the_middle_on_and_can_become_its_chief(
    goes_on: bool, worker_group: Callable[..., Workers]
) -> None:
    batches = numbered(10)
    among = worker_group(1, batches, steps=5, goes_on=goes_on)
    epoch = batches[5:] if goes_on else batches[:5]
    among.epoch(0)
    among.begin(1)
    taken = [among.take(step) for step in range(2)]
    newcomer = stream(batches, 5, goes_on)
    newcomer.know(newcomer.peek())
    newcomer.go_to(among.streams[0].bookmark(2))
    newcomer.begin(1, first=2)
    among.streams.append(newcomer)
    taken.append(among.take(2))
    among.lose_chief()
    assert taken + among.rest(3) == epoch


def test_a_stream_has_an_order_of_its_own(worker_group: Callable[..., Workers]) -> None:
    among = worker_group(1, numbered(3))
    among.streams[0].use_seed(3)
    assert among.epoch() == numbered(3)


def test_a_pass_that_takes_long_to_end_does_not_hold_up_the_next_one() -> None:
    """As iterators of TensorFlow do at times, and loaders that wait for their processes."""
    may_end, has_ended = threading.Event(), threading.Event()

    def given() -> Iterator[list[int]]:
        try:
            yield from numbered(3)
        finally:
            may_end.wait(30)
            has_ended.set()

    among = Workers([Stream("fit", Restartable(given), lambda batch: ([np.array(batch)], "leaf"), 2)])
    try:
        assert among.epoch(0) == numbered(2)
        assert among.epoch(1) == numbered(2)
        assert not has_ended.is_set()
        may_end.set()
        assert has_ended.wait(30)
    finally:
        may_end.set()
        among.close()
