"""A stream in shards: each is read by one worker, and by another from the same place on when it is lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.sources.rank import ALONE
from shoal.data.sources.shard_reading import STATE_EVERY
from shoal.data.sources.sharded_stream import ShardedStream
from shoal.data.sources.shares import Taken
from shoal.errors import CannotDistribute, UsageError

from .places import rows_by_rank

Data = Sequence[Sequence[Sequence[int]]]  # by shard: its batches


class Wire:
    """The workers of one view, each in a thread of its own: they wait for each other only in `gather` and `receive`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.said: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=20)
        self.sent: dict[tuple[int, tuple[int, ...]], list[np.ndarray]] = {}
        self.arrived = threading.Condition()
        self.rows_sent = 0


class ThreadPlace:
    def __init__(self, rank: int, wire: Wire) -> None:
        self.rank, self.size = rank, wire.size
        self._wire = wire

    def gather(self, what: str, value: bytes) -> list[bytes]:
        self._wire.said[self.rank] = value
        self._wire.barrier.wait()
        said = list(self._wire.said)
        self._wire.barrier.wait()
        return said

    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[np.ndarray]) -> None:
        with self._wire.arrived:
            for rank in ranks:
                self._wire.sent[rank, name] = list(arrays)
                self._wire.rows_sent += len(arrays[0])
            self._wire.arrived.notify_all()

    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[np.ndarray]:
        with self._wire.arrived:
            assert self._wire.arrived.wait_for(lambda: (self.rank, name) in self._wire.sent, 20)
            return self._wire.sent.pop((self.rank, name))

    def scatter(self, *given: Any) -> Any:
        raise AssertionError("nobody hands out a stream of shards")


class Counted:
    """What one worker has read: the batches by shard, in order."""

    def __init__(self) -> None:
        self.read: dict[int, list[int]] = {}
        self.opened: list[tuple[int, int]] = []

    @property
    def batches(self) -> int:
        return sum(len(numbers) for numbers in self.read.values())


def plain(data: Data, seen: Counted) -> Callable[[int, int], Iterator[Any]]:
    def make(shard: int, passes: int) -> Iterator[Any]:
        seen.opened.append((shard, passes))
        for number, batch in enumerate(data[shard]):
            seen.read.setdefault(shard, []).append(number)
            yield np.array(batch)

    return make


class Resumable:
    """As Grain's iterators."""

    def __init__(self, batches: Sequence[Sequence[int]], shard: int, seen: Counted) -> None:
        self._batches, self._shard, self._seen, self._next = batches, shard, seen, 0

    def __iter__(self) -> Resumable:
        return self

    def __next__(self) -> Any:
        if self._next >= len(self._batches):
            raise StopIteration
        self._seen.read.setdefault(self._shard, []).append(self._next)
        self._next += 1
        return np.array(self._batches[self._next - 1])

    def get_state(self) -> dict[str, int]:
        return {"next": self._next}

    def set_state(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Crew:
    """Workers that take a stream together, each with its own copy."""

    def __init__(self, data: Data, workers: int, resumable: bool = False, **settings: Any) -> None:
        self.data, self._resumable, self._settings = data, resumable, settings
        self.seen: list[Counted] = []
        self.streams: list[ShardedStream] = []
        for _ in range(workers):
            self.hire()
        peeked = self.streams[0].peek()
        for stream in self.streams:
            stream.know(peeked)
        self.rows_sent = 0

    def hire(self) -> ShardedStream:
        seen = Counted()
        opens = (lambda s, _: Resumable(self.data[s], s, seen)) if self._resumable else plain(self.data, seen)
        steps = self._settings.get("steps")
        stream = ShardedStream(
            self._settings.get("what", "fit"),
            opens,
            len(self.data),
            lambda batch: ([batch], "leaf"),
            steps,
            goes_on=steps is not None,
        )
        self.seen.append(seen)
        self.streams.append(stream)
        return stream

    def join(self) -> None:
        """Somebody comes, and is told where the others stand."""
        newcomer = self.hire()
        newcomer.know(newcomer.peek())

    def begin(self, first: int = 0) -> None:
        for stream in self.streams:
            stream.begin(0, first=first)

    def take(self, step: int) -> list[int] | None:
        """The samples of a step, in the order of ranks."""
        wire = Wire(len(self.streams))
        split = rows_by_rank(wire.size)
        taken: list[Taken | None] = [None] * wire.size
        raised: list[Exception] = []

        def act(rank: int) -> None:
            try:
                taken[rank] = self.streams[rank].take(step, split, ThreadPlace(rank, wire))
            except Exception as error:
                raised.append(error)
                wire.barrier.abort()

        threads = [threading.Thread(target=act, args=[rank]) for rank in range(wire.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise next((each for each in raised if not isinstance(each, threading.BrokenBarrierError)), raised[0])
        self.rows_sent += wire.rows_sent
        parts = [part for part in taken if part is not None]
        assert len(parts) in (0, wire.size), "they disagree on the end"
        assert len({part.size for part in parts}) <= 1
        rows = [sample for part in parts for sample in part.rows[0].tolist()]
        assert not parts or len(rows) == parts[0].size
        return rows if parts else None

    def steps(self, first: int = 0) -> Iterator[list[int]]:
        for step in itertools.count(first):
            samples = None if self.streams[0].steps == step else self.take(step)
            if samples is None:
                for stream in self.streams:
                    stream.end(step)
                return
            yield samples

    def epoch(self) -> list[list[int]]:
        self.begin()
        return list(self.steps())

    def lose(self, rank: int) -> None:
        self.streams.pop(rank).close()
        self.seen.pop(rank)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


@pytest.fixture
def crew() -> Iterator[Callable[..., Crew]]:
    made: list[Crew] = []

    def crew(*given: Any, **settings: Any) -> Crew:
        made.append(Crew(*given, **settings))
        return made[-1]

    yield crew
    for each in made:
        each.close()


def numbered(lengths: Sequence[int], rows: int = 2) -> Data:
    """Shards of so many batches, whose samples tell where they belong."""
    return [[[1000 * s + 10 * n + i for i in range(rows)] for n in range(length)] for s, length in enumerate(lengths)]


def in_order(data: Data) -> list[list[int]]:
    """A naive witness: step n holds batch n of every shard that has one."""
    steps = max(map(len, data))
    return [[x for shard in data if n < len(shard) for x in shard[n]] for n in range(steps)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=8).filter(lambda d: bool(d[0])),
    st.integers(1, 4),
)
def test_every_sample_is_taken_once_in_the_same_order_on_any_number_of_workers(
    sizes: list[list[int]], workers: int
) -> None:
    data = [[[100 * s + 10 * n + i for i in range(k)] for n, k in enumerate(of)] for s, of in enumerate(sizes)]
    crew = Crew(data, workers)
    try:
        assert crew.epoch() == in_order(data)
        read = [(shard, n) for seen in crew.seen for shard, numbers in seen.read.items() for n in numbers]
        assert len(read) == len(set(read)), "a batch was read twice"
    finally:
        crew.close()


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_a_worker_reads_its_own_shards_only_and_sends_no_row(crew: Callable[..., Crew], workers: int) -> None:
    data = numbered([20] * 12)
    among = crew(data, workers)
    assert among.epoch() == in_order(data)
    assert [seen.batches for seen in among.seen] == [240 // workers] * workers
    assert among.rows_sent == 0


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_shards_of_a_lost_worker_go_on_at_the_same_place(
    crew: Callable[..., Crew], lost: int, resumable: bool
) -> None:
    data = numbered([3 * STATE_EVERY] * 6)
    among = crew(data, 3, resumable)
    among.begin()
    at = 2 * STATE_EVERY + 3
    taken = list(itertools.islice(among.steps(), at))
    among.lose(lost)
    for seen in among.seen:
        seen.read.clear()
    assert taken + list(among.steps(at)) == in_order(data)
    moved = [numbers for seen in among.seen for numbers in seen.read.values() if numbers[0] < at]
    assert len(moved) in (2, 3), "only those of the lost worker, and one that went to a neighbour, are opened anew"
    assert {numbers[0] for numbers in moved} == ({2 * STATE_EVERY} if resumable else {0})


def test_a_newcomer_and_a_checkpoint_go_on_where_the_others_stand(crew: Callable[..., Crew]) -> None:
    data = numbered([3 * STATE_EVERY] * 6)
    among = crew(data, 2, resumable=True)
    among.begin()
    at = STATE_EVERY + 5
    taken = list(itertools.islice(among.steps(), at))
    mark = among.streams[0].bookmark(at)
    assert all(stream.bookmark(at) == mark for stream in among.streams)
    among.join()
    among.streams[-1].go_to(mark)
    among.streams[-1].begin(0, first=at)
    among.seen[-1].read.clear()
    assert taken + list(among.steps(at)) == in_order(data)
    assert min(n for numbers in among.seen[-1].read.values() for n in numbers) == STATE_EVERY
    resumed = crew(data, 3, resumable=True)
    for stream in resumed.streams:
        stream.go_to(mark)
    resumed.begin(first=at)
    assert taken + list(resumed.steps(at)) == in_order(data)


def test_a_step_is_taken_again_by_those_who_are_left(crew: Callable[..., Crew]) -> None:
    data = numbered([5] * 6)
    among = crew(data, 3)
    among.begin()
    first, second = among.take(0), among.take(1)
    among.lose(1)
    assert among.take(1) == second
    assert [first, second, *among.steps(2)] == in_order(data)


def test_shorter_epochs_go_on_and_the_next_pass_is_told_its_number(crew: Callable[..., Crew]) -> None:
    data = numbered([5] * 2)
    among = crew(data, 2, steps=2)
    assert among.epoch() + among.epoch() + among.epoch() == in_order(data)
    assert among.epoch() == in_order(data)[:2]
    assert {passes for seen in among.seen for _, passes in seen.opened} == {0, 1}


def test_a_loop_knows_its_last_step(crew: Callable[..., Crew]) -> None:
    among = crew(numbered([3, 2, 3, 1]), 2, what="batches")
    among.begin()
    ends = []
    for step in range(3):
        among.take(step)
        ends.append([stream.ends_after(step) for stream in among.streams])
    assert ends == [[False, False], [False, False], [True, True]]


def test_in_an_evaluation_each_batch_goes_whole_to_one_worker_and_is_read_once(crew: Callable[..., Crew]) -> None:
    data = numbered([4] * 4)
    among = crew(data, 2, what="evaluate")
    assert among.epoch() == in_order(data)
    assert [seen.batches for seen in among.seen] == [8, 8]


def test_a_shard_with_other_rows_is_named() -> None:
    shards = [[np.zeros((2, 3))], [np.zeros((2, 4))]]
    stream = ShardedStream("fit", lambda shard, _: iter(shards[shard]), 2, lambda b: ([b], "leaf"), None)
    stream.know(stream.peek())
    stream.begin(0)
    with pytest.raises(CannotDistribute, match=r"shard 1 of the stream gave .*\(4,\).*expected .*\(3,\)"):
        stream.take(0, lambda size: [range(size)], ALONE)
    stream.close()


def test_an_error_in_a_shard_names_it() -> None:
    def make(shard: int, passes: int) -> Iterator[Any]:
        raise OSError("no such file")
        yield

    stream = ShardedStream("fit", make, 2, lambda b: ([b], "leaf"), None)
    with pytest.raises(OSError, match="no such file") as caught:
        stream.peek()
    assert caught.value.__notes__ == ["shoal: while reading batch 0 of shard 0"]
    stream.close()


def test_a_first_shard_without_a_batch_is_refused() -> None:
    stream = ShardedStream("fit", lambda shard, _: iter([]), 2, lambda b: ([b], "leaf"), None)
    with pytest.raises(CannotDistribute, match="shard 0 of the stream gives no batch"):
        stream.know(stream.peek())
    stream.close()


def test_a_state_that_can_not_travel_is_not_used(crew: Callable[..., Crew]) -> None:
    class Opaque(Resumable):
        def get_state(self) -> Any:
            return {"next": np.array([self._next, 1])}

        def set_state(self, state: Any) -> None:
            raise UsageError("must not be called")

    data, seen = numbered([2 * STATE_EVERY] * 2), Counted()
    stream = ShardedStream("fit", lambda s, _: Opaque(data[s], s, seen), 2, lambda b: ([b], "leaf"), None)
    stream.know(stream.peek())
    stream.begin(0)
    for step in range(STATE_EVERY + 2):
        stream.take(step, lambda size: [range(size)], ALONE)
    assert stream.bookmark(STATE_EVERY + 2).states == {}
    stream.close()
