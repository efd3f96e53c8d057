"""Workers with other data than the chief's, without processes: who takes what, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.collectives.group import Gathered, Result
from shoal.data.columns import Jagged, LeafSpec, dense
from shoal.data.sources import AbstractSource, Arrays, Batches, BatchSeries, HandedOut, Spec, digest_of
from shoal.data.sources.stream import Restartable, Stream
from shoal.errors import CannotDistribute, Diverged
from shoal.training import data_agreement
from shoal.training.data_agreement import DataState, agree_on_data, join_data

PATIENCE = 20.0


class Gone(Exception):
    """This worker is killed here."""


class Crew:
    """Workers in threads, who do everything together. With `chief_dies_at` the first one is killed in that commit."""

    def __init__(self, size: int, chief_dies_at: int | None = None) -> None:
        self._dies_at = chief_dies_at
        self._everyone = tuple(f"worker-{i}" for i in range(size))
        self._barriers = {n: threading.Barrier(n) for n in (size, size - 1) if n}
        self._said: dict[tuple[int, int, str], Any] = {}

    def members(self, commit: int) -> tuple[str, ...]:
        return self._everyone if self._dies_at is None or commit < self._dies_at else self._everyone[1:]

    def tell_all(self, commit: int, turn: int, me: str, value: Any) -> list[Any]:
        members = self.members(commit)
        self._said[commit, turn, me] = value
        self._barriers[len(members)].wait(PATIENCE)
        return [self._said[commit, turn, member] for member in members]


class Group:
    def __init__(self, crew: Crew, commit: int, me: str) -> None:
        self.members = crew.members(commit)
        self.rank = self.members.index(me)
        self.size = len(self.members)
        self._crew, self._commit, self._me, self._turn = crew, commit, me, 0

    def _tell(self, value: Any) -> list[Any]:
        self._turn += 1
        return self._crew.tell_all(self._commit, self._turn, self._me, value)

    def gather(self, what: str, value: bytes) -> list[bytes]:
        return self._tell(value)

    def broadcast(self, what: str, arrays: list[np.ndarray]) -> None:
        chiefs = self._tell([array.copy() for array in arrays])[0]
        for array, value in zip(arrays, chiefs, strict=True):
            assert (array.shape, array.dtype) == (value.shape, value.dtype)
            array[...] = value


class WorkerGroup:
    is_late = False

    def __init__(self, crew: Crew, me: str) -> None:
        self._crew, self._me, self.commits = crew, me, 0

    def commit(self, act: Callable[[Any], Result]) -> Result:
        commit = self.commits
        self.commits += 1
        if self._me not in self._crew.members(commit):
            raise Gone
        return act(Group(self._crew, commit, self._me))

    def gather(self, what: str, value: Any) -> Gathered:
        def act(group: Group) -> Result:
            told = group.gather(what, value if isinstance(value, bytes) else value(group))
            return Result([msgspec.msgpack.encode(group.members), *told], [])

        members, *values = self.commit(act).values
        return Gathered(msgspec.msgpack.decode(members, type=tuple[str, ...]), values)


class Run:
    def __init__(self, worker_group: WorkerGroup, rank_was_asked: bool) -> None:
        self.worker_group = worker_group
        self.rank_was_asked = rank_was_asked
        self.told: list[str] = []

    def script_line(self) -> str:
        return "train.py:41: "

    def tell(self, text: str) -> None:
        self.told.append(text)


def agreed(
    sources: list[AbstractSource], asked: int | None = None, shards: Any = None, chief_dies_at: int | None = None
) -> tuple[list[Any], list[Run]]:
    """What each worker goes on with, or is told. `asked`: the worker whose script asked for its rank."""
    crew = Crew(len(sources), chief_dies_at)
    runs = [Run(WorkerGroup(crew, f"worker-{i}"), i == asked) for i in range(len(sources))]
    results: list[Any] = [None] * len(sources)

    def work(i: int) -> None:
        try:
            results[i] = agree_on_data("fit", sources[i], shards[i] if shards else [], runs[i])  # type: ignore[arg-type]
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results, runs


def arrays(first: int, count: int = 20) -> Arrays:
    rows = np.arange(first, first + count, dtype="float32").reshape(-1, 1)
    lengths = np.arange(count) % 4
    spec = LeafSpec("int64", (None,), "ragged", (dense("int64", ()),))
    texts = Jagged(spec, np.cumsum([0, *lengths]), [np.arange(lengths.sum()) + first])
    return Arrays([rows, texts], {"tuple": ["leaf", "leaf"]}, 8, seed=None)


def firsts(source: Arrays) -> list[float]:
    """The first and the last number of each array, jagged ones too, and how many rows there are."""
    dense_rows, jagged = source.rows
    assert isinstance(jagged, Jagged)
    (values,) = jagged.parts
    return [dense_rows[0, 0], dense_rows[-1, 0], values[0], values[-1], len(dense_rows), len(jagged)]


def batches(first: int, count: int = 5) -> Batches:
    def load(number: int) -> list[Any]:
        return [np.arange(4) + first + 10 * number]

    return Batches(load, BatchSeries(Spec.of(load(0), "leaf"), count, None, seen=digest_of(load(0), count)))


def stream(first: int) -> Stream:
    return Stream("fit", Restartable(lambda: iter([first])), lambda value: ([np.arange(4) + value], "leaf"), None)


def test_the_same_arrays_stay_where_they_are() -> None:
    given = [arrays(3), arrays(3), arrays(3)]
    results, runs = agreed(given, asked=1)
    assert results == given
    assert [run.worker_group.commits for run in runs] == [1, 1, 1]


@pytest.mark.parametrize("chunk", [8, 100, 10**6])
def test_other_arrays_are_the_chiefs_chunk_by_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_agreement, "_CHUNK", chunk)
    results, runs = agreed([arrays(3, 21), arrays(50), arrays(70, 9)])
    assert [firsts(result) for result in results] == [firsts(arrays(3, 21))] * 3
    assert len({result.extent() for result in results}) == 1
    assert "the data of worker-1, worker-2 is not the chief's" in runs[0].told[0]


@pytest.mark.parametrize("dies_at", range(2, 8))
def test_if_the_chief_dies_meanwhile_the_next_ones_arrays_are_taken_whole(
    dies_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_agreement, "_CHUNK", 32)
    (chief, *others), _ = agreed([arrays(3, 21), arrays(50), arrays(70, 9)], chief_dies_at=dies_at)
    assert isinstance(chief, Gone)
    assert [firsts(result) for result in others] == [firsts(arrays(50))] * 2


@pytest.mark.parametrize("make", [arrays, batches, stream])
def test_other_data_is_an_error_once_a_worker_asked_for_its_rank(make: Callable[[int], AbstractSource]) -> None:
    sources = [make(0), make(0), make(5)]
    results, _ = agreed(sources, asked=1)
    for source in sources:
        source.close()
    assert all(isinstance(result, Diverged) and "worker-2" in str(result) for result in results), results


@pytest.mark.parametrize("other", [batches(7), batches(0, 4)])
def test_other_batches_are_the_chiefs_who_hands_them_out(other: Batches) -> None:
    sources = [batches(0), other]
    results, _ = agreed(sources)
    for source in sources:
        source.close()
    assert all(isinstance(result, HandedOut) and result.steps == 5 and result.together for result in results)


def test_of_streams_the_chiefs_is_read_and_nobody_minds_the_others() -> None:
    sources = [stream(0), stream(5)]
    results, _ = agreed(sources)
    assert results == sources
    for source in sources:
        source.close()


def test_pipelines_that_are_sharded_differently_are_refused() -> None:
    sources = [stream(0), stream(0)]
    results, _ = agreed(sources, shards=[[(2, 0)], [(2, 1)]])
    assert all(isinstance(result, CannotDistribute) for result in results)
    results, _ = agreed(sources, shards=[[(2, 0)], [(2, 0)]])
    assert results == sources
    for source in sources:
        source.close()


def test_a_stream_that_raises_on_the_chief_raises_on_all() -> None:
    def broken() -> Any:
        raise OSError("no such file")

    sources = [Stream("fit", Restartable(broken), lambda value: ([], "leaf"), None), stream(0)]
    (chief, other), _ = agreed(sources)
    for source in sources:
        source.close()
    assert isinstance(chief, OSError)
    assert isinstance(other, CannotDistribute)
    assert "the data of worker-0 raised OSError: no such file" in str(other)


def test_who_comes_late_uses_its_data_as_the_others_do() -> None:
    late = batches(7)
    joined = join_data("fit", late, DataState.of(HandedOut("fit", batches(0), late.spec(), 5)))
    assert isinstance(joined, HandedOut)
    assert joined.steps == 5
    assert join_data("fit", late, DataState.of(batches(0))) is late  # as many batches; its first may be drawn by chance
    with pytest.raises(Diverged, match="came late"):
        join_data("fit", arrays(3), DataState.of(arrays(4)))
    joined.close()
