"""Do all workers hold the same data? Every worker runs the script, so each has loaded or made its own.

    arrays            compared by their number of samples and some rows
    batches, items    by their number, and by the first of them
    streams           only the chief's is read. Their first batches are compared if the script asked for its rank: who
                      divides a stream by rank would lose all parts but the chief's
    streams in shards by the number of shards, and as streams: the first batch of the first shard

If they differ and the script never asked for its rank, the chief's are taken: a script that can't tell its workers
apart can't mean other data on one of them. Arrays are sent to all; of the rest the chief hands out the rows, step by
step. If it asked, the difference is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.collectives.arrays import ArraySpec, specs
from shoal.collectives.group import AbstractGroup, Gathered, Result, WorkerGroup
from shoal.data.columns import Array, pack, unpack
from shoal.data.sources import AbstractSource, AbstractStream, Arrays, HandedOut, Spec
from shoal.errors import CannotDistribute, Diverged
from shoal.training.run import Run

_CHUNK = 64 * 2**20  # bytes that the chief's arrays are handed out by

Shards = list[tuple[int, int]]


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says of its data."""

    asked: bool  # whether the script asked for its rank
    extent: bytes
    sample: bytes
    shards: Shards  # of a tf.data pipeline: number and index
    spec: Spec | None
    steps: int | None


class DataState(msgspec.Struct, frozen=True, array_like=True):
    """What a worker that comes late must know of the others' data."""

    extent: bytes = b""
    handed: tuple[Spec, int | None] | None = None  # what the chief hands out, and in how many steps

    @classmethod
    def of(cls, source: AbstractSource) -> DataState:
        handed = (source.spec(), source.steps) if isinstance(source, HandedOut) else None
        return cls(source.extent(), handed)


def agree_on_data(what: str, source: AbstractSource, shards: Shards, run: Run) -> AbstractSource:
    """The source with which all workers go on; raises where they would train samples twice or never."""
    worker_group = run.worker_group
    if worker_group.is_late:  # what the others agreed on is over; they tell what they have when they let this worker in
        if isinstance(source, AbstractStream):
            source.know(source.peek())
        return source
    is_stream = isinstance(source, AbstractStream)
    known = (b"", None, None) if is_stream else (source.sample(), source.spec(), source.steps)
    mine = _Word(run.rank_was_asked, source.extent(), known[0], shards, *known[1:])
    told = worker_group.gather(f"{what}: the data", msgspec.msgpack.encode(mine))
    words = [msgspec.msgpack.decode(value, type=_Word) for value in told.values]
    asked = any(word.asked for word in words)
    _refuse_shards(what, [word.shards for word in words])
    if isinstance(source, AbstractStream):
        odd = _unlike_first(told.members, [word.extent for word in words])
        if odd:
            raise _differs(what, odd)
        _agree_on_stream(what, source, worker_group, asked)
        return source
    odd = _unlike_first(told.members, [word.extent + word.sample for word in words])
    if not odd:
        return source
    if asked:
        raise _differs(what, odd)
    run.tell(
        f"{run.script_line()}{what}(): the data of {_names(odd)} is not the chief's, which all workers take now. "
        "Give a fixed seed to whatever makes, shuffles or splits it, and it need not be sent."
    )
    if isinstance(source, Arrays):
        return _chiefs(what, source, worker_group)
    chiefs = words[0]
    assert chiefs.spec is not None, "what is no stream has a spec"
    return HandedOut(what, source, chiefs.spec, chiefs.steps)


def join_data(what: str, source: AbstractSource, state: DataState) -> AbstractSource:
    """For a worker that came late: its source, used as the others use theirs."""
    if state.handed is not None:
        return HandedOut(what, source, *state.handed)
    if source.extent() != state.extent:
        raise Diverged(
            f"{what}(): the data of this worker, which came late, is not the run's. Give a fixed seed to whatever "
            "makes, shuffles or splits it."
        )
    return source


class _Look(msgspec.Struct, frozen=True, array_like=True):
    """A worker's look at its first batch."""

    peeked: bytes = b""
    sample: bytes = b""
    error: str = ""  # that it ended with: all raise one, so that a script which catches it goes on everywhere


def _agree_on_stream(what: str, stream: AbstractStream, worker_group: WorkerGroup, asked: bool) -> None:
    raised: list[Exception] = []

    def look(group: AbstractGroup) -> bytes:
        try:
            seen = _Look(stream.peek() if group.rank == 0 else b"", stream.sample() if asked else b"")
        except Exception as error:
            raised.append(error)
            seen = _Look(error=f"{type(error).__name__}: {error}")
        return msgspec.msgpack.encode(seen)

    told = worker_group.gather(f"{what}: what batches look like", look)
    looks = [msgspec.msgpack.decode(value, type=_Look) for value in told.values]
    if raised:
        raise raised[-1]
    for member, seen in zip(told.members, looks, strict=True):
        if seen.error:
            raise CannotDistribute(f"{what}(): the data of {member} raised {seen.error}")
    odd = _unlike_first(told.members, [seen.sample for seen in looks])
    if odd:
        raise Diverged(
            f"{what}(): the first batch of {_names(odd)} is not the chief's, and the script asked for its rank. "
            f"{stream.differs}"
        )
    stream.know(looks[0].peeked)


def _refuse_shards(what: str, shards: Sequence[Shards]) -> None:
    if any(other != shards[0] for other in shards):
        raise CannotDistribute(
            f"{what}(): the workers' tf.data pipelines are sharded differently "
            f"({', '.join(map(_shard, shards))}). Leave `.shard()` out: Shoal divides each batch among the workers."
        )


def _shard(shards: Shards) -> str:
    return "".join(f".shard({number}, {index})" for number, index in shards) or "not at all"


def _differs(what: str, odd: Sequence[str]) -> Diverged:
    return Diverged(
        f"{what}(): the data of {_names(odd)} differs from the chief's, so samples would be "
        "trained twice or never. Every worker must load the same data in the same order, whatever its rank: Shoal "
        "divides it. Give a fixed seed to whatever shuffles, splits or generates it (`np.random.default_rng(0)`, "
        "`random_state=0`)."
    )


def _unlike_first(members: Sequence[str], values: Sequence[bytes]) -> list[str]:
    return Gathered(tuple(members), list(values)).unlike_chiefs()


def _names(members: Sequence[str]) -> str:
    return ", ".join(members)


# The chief's arrays -------------------------------------------------------------------------------------


class _About(msgspec.Struct, frozen=True, array_like=True):
    """What the chief has."""

    spec: Spec
    batch_size: int
    arrays: list[ArraySpec]


class _Chunk(NamedTuple):
    """Some rows of one of the arrays."""

    array: int
    rows: slice


def _chiefs(what: str, source: Arrays, worker_group: WorkerGroup) -> Arrays:
    """The chief's arrays for everyone, a chunk at a time. If the chief dies, the next one's, from the beginning."""
    while (taken := _try_chiefs(what, source, worker_group)) is None:
        pass
    return taken


def _try_chiefs(what: str, source: Arrays, worker_group: WorkerGroup) -> Arrays | None:
    mine = pack(source.rows)
    about = _About(source.spec(), source.batch_size, specs(mine))
    told = worker_group.gather(f"{what}: what the chief has", msgspec.msgpack.encode(about))
    giver, about = told.members[0], msgspec.msgpack.decode(told.chiefs, type=_About)
    landed = [spec.empty() for spec in about.arrays]
    for chunk in _chunks(landed):
        given = worker_group.commit(_giving(what, giver, chunk, mine, landed)).arrays
        if not given:
            return None
        landed[chunk.array][chunk.rows] = given[0]
    return source.with_rows(unpack(about.spec.leaves, landed), about.spec.skeleton, about.batch_size)


def _chunks(arrays: Sequence[Array]) -> Iterator[_Chunk]:
    for number, array in enumerate(arrays):
        rows = max(1, _CHUNK // max(1, array[:1].nbytes))
        for first in range(0, len(array), rows):
            yield _Chunk(number, slice(first, min(first + rows, len(array))))


def _giving(
    what: str, giver: str, chunk: _Chunk, mine: Sequence[Array], landed: Sequence[Array]
) -> Callable[[AbstractGroup], Result]:
    def act(group: AbstractGroup) -> Result:
        if group.members[0] != giver:
            return Result([], [])  # the next chief has other arrays: all begin again
        arrays = mine if group.rank == 0 else landed
        landing = np.array(arrays[chunk.array][chunk.rows])  # anew: half of what was sent may lie there
        group.broadcast(f"{what}: the chief's arrays", [landing])
        return Result([], [landing])

    return act
