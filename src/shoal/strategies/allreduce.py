"""Synchronous training: every step, all pieces' gradients are summed and every worker applies the same update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from shoal.codecs.choice import codec_of
from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.codecs.lossy import AbstractLossy
from shoal.collectives.group import (
    AbstractExchange,
    AbstractGroup,
    Result,
    StateKeeper,
    VectorEncoding,
    WorkerGroup,
    prepare_bucket,
)
from shoal.collectives.layout import Vector
from shoal.collectives.tree import Node, cover
from shoal.data.order import piece_bounds, pieces_of
from shoal.errors import Diverged, UsageError
from shoal.strategies.abstract import AbstractStrategy, Told, Trainings, is_count
from shoal.strategies.balance import Balance
from shoal.strategies.mesh.shape import Mesh
from shoal.strategies.notes import Note, check_agreement, decode, encode, stopped
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schema import Array, Schema, Totals

T = TypeVar("T")


@dataclass(frozen=True)
class AllReduce(AbstractStrategy):
    """Synchronous data parallelism.

    `pieces` is the number of equal parts that each batch is cut into. With `pieces` fixed, the weights are the
    same bits for any number of workers. None: as many as there are workers, or what `shoal run --pieces` says.
    `mesh` is how each worker uses its devices, on JAX. None: what `shoal run --mesh` says, else rows are divided.
    `compress` makes gradients smaller where links are slow: "bf16", "int8", TopK(0.01), LowRank(rank=4); "auto" is
    what pays on the links that there are. None: what `shoal run --compress` says.
    `sliced`: each worker updates a slice of the weights, for all workers of its host, instead of all of them.
    None: if `shoal run --sliced` says so.
    """

    pieces: int | None = None
    compress: str | AbstractCodec | AbstractLossy | None = None
    sliced: bool | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        codec_of(self.compress, "AllReduce")
        if self.pieces is not None and not is_count(self.pieces):
            raise UsageError(
                f"AllReduce(pieces={self.pieces!r}): expected a whole number, at least 1 piece. Leave it out for one "
                "piece per worker."
            )

    def codec_for(self, told: str | None) -> AbstractCodec:
        return codec_of(self.compress or told, "AllReduce")

    def train(self, told: Told, trainings: Trainings[T]) -> T:
        pieces = self.pieces_for(told.pieces, told.workers)
        sliced = told.sliced if self.sliced is None else self.sliced
        return trainings.together(pieces, self.fixes_pieces(told.pieces), sliced)

    def fixes_pieces(self, told: int | None) -> bool:
        """Whether the user said how many pieces; otherwise they may become more while training goes on."""
        return (self.pieces or told) is not None

    def pieces_for(self, told: int | None, workers: int) -> int:
        pieces = self.pieces or told or workers
        if pieces < workers:
            raise UsageError(
                f"{pieces} pieces for {workers} workers: {workers - pieces} of them would have nothing to do. "
                f"Use at least {workers} pieces, or fewer workers."
            )
        return pieces


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """Who computed what in a step: the size of its batch, its pieces, and the run of them that each member held."""

    size: int
    pieces: int
    members: tuple[str, ...]
    held: tuple[tuple[int, int], ...]


class Exchanged(msgspec.Struct, frozen=True):
    """What a step's exchange gave: every entry's total, in place, and everyone's notes by rank."""

    totals: list[Array]
    notes: list[Note]
    shared: Shared
    vector: Vector  # in which the totals lie


class StepTask(Protocol):
    """What a worker does in a step. It may be asked for more than once, until the step has committed."""

    def take(self, split: Callable[[int], Sequence[range]], group: AbstractGroup) -> int | None:
        """Get the rows of this worker's pieces; the size of the whole batch, or None if there is none."""

    def compute(self, piece: int, low: int, high: int) -> Sequence[Array]:
        """The arrays of the piece that holds rows [low, high) of the batch."""

    def note(self) -> Note:
        """Asked after the last piece. With `stop` set, nothing is computed."""


class Division:
    """How the batches of a fit are divided: into how many pieces, and who computes which. The same on all members.

    Who is slow gets fewer pieces, as far as `balance` knows; that changes who computes what, never the sum.
    """

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.balance = Balance.start()

    def learn(self, parts: Sequence[Exchanged]) -> None:
        """From a step, of all its parts. Everyone learns the same from the same notes."""
        shared = parts[0].shared
        if any(part.shared != shared for part in parts) or stopped(parts[0].notes):
            return  # somebody was lost in the middle of it, or it did not count
        held = tuple(range(start, stop) for start, stop in shared.held)
        updates = tuple(note.update for note in parts[0].notes)
        self.balance = self.balance.observe(shared.members, held, seconds_of(parts), shared.size, updates)

    def rows(self, size: int, members: tuple[str, ...]) -> Sequence[range]:
        """The rows of a batch of `size` samples that each rank computes."""
        pieces = pieces_of(size, self.pieces)
        bounds = piece_bounds(size, pieces)
        held = self.balance.shares(pieces, members, size)
        return [range(bounds[share.start], bounds[share.stop]) for share in held]


def seconds_of(parts: Sequence[Exchanged]) -> tuple[float, ...]:
    """What each rank's pieces took in a step of these parts."""
    return tuple(sum(note.seconds for note in notes) for notes in zip(*(part.notes for part in parts), strict=True))


class Reduction:
    """The exchanges of one kind of a fit or evaluate: the sum of what pieces give, along the piece tree.

    `what` names what all must have the same schema for; None within an act, where nothing else may be agreed upon.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        schema: Schema,
        division: Division,
        what: str | None,
        on_reopen: Callable[[], None] = lambda: None,
        codec: AbstractCodec = AS_THEY_ARE,
        on_lost: Callable[[Sequence[int]], None] = lambda slots: None,
        copies: bool = False,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`codec`: in whose form the schema's gradients travel; `on_lost` hears of slots whose residuals are lost, and
        with `copies` those of a worker that is alone on its host are on another, too. `loss_scale`: by which the
        gradients of a step are too large, the same on all.
        """
        self._worker_group = worker_group
        self._division = division
        self._use(schema.rounded(codec.rounding))
        self._slots = 0
        self._group: AbstractGroup | None = None  # on which the exchange was opened
        self._exchange: AbstractExchange | None = None
        self._on_reopen = on_reopen
        self._loss_scale = loss_scale
        self._encoding = None
        if codec.by_slot is not None:
            gradients = schema.gradients
            dims = [entry.shape for entry in schema.entries[: len(gradients)]]
            self._encoding = VectorEncoding(codec.by_slot, schema.layout, gradients, dims, on_lost, copies)
        if what is not None and not worker_group.is_late:
            self._check_same_schema(what)

    def round_like(self, codec: AbstractCodec) -> None:
        """Between two steps: gradients travel as this codec has it, from the next one on. The same on all."""
        self._on_reopen()
        self._close_exchange()
        self._use(self._schema.rounded(codec.rounding))

    def _use(self, schema: Schema) -> None:
        self._schema = schema
        self._sums = PartialSums(schema)
        self._totals = Totals(schema)

    def prepare(self) -> None:
        """For a newcomer: takes the memory that it will need, so that nobody waits for that later."""
        if self._worker_group.shares_memory and self._encoding is None:
            prepare_bucket(self._schema.layout)

    def step(
        self,
        what: str,
        task: StepTask,
        stops: bool = False,
        keeper: StateKeeper | None = None,
        admit: Sequence[str] = (),
        leavers: Sequence[str] = (),
    ) -> Exchanged | None:
        """Computes this worker's pieces and exchanges them; None when there is no data for the step.

        `stops`: this worker takes part without computing anything, since it has stopped.
        """

        def act(group: AbstractGroup) -> Result:
            size = task.take(lambda batch: self._division.rows(batch, group.members), group)
            if size is None:
                return Result([], [])
            pieces = pieces_of(size, self._division.pieces)
            bounds = piece_bounds(size, pieces)

            def weighted(piece: int) -> tuple[Sequence[Array], float]:
                low, high = bounds[piece], bounds[piece + 1]
                return task.compute(piece, low, high), (high - low) / size

            return self.reduce(group, what, pieces, None if stops else weighted, task.note, size)

        result = self._worker_group.commit(act, keeper, admit, leavers)
        if not result.values:
            return None
        return self.exchanged(result)

    def reduce(
        self,
        group: AbstractGroup,
        what: str,
        pieces: int,
        weighted: Callable[[int], tuple[Sequence[Array], float]] | None,
        note: Callable[[], Note],
        size: int = 0,
    ) -> Result:
        """Within an act: sums the weighted arrays of `pieces` pieces, of which this worker computes its share."""
        held = self._division.balance.shares(pieces, group.members, size)
        exchange = self._open(group, max(1, *(len(self._nodes(pieces, share)) for share in held)))
        mine = held[group.rank]
        if weighted is None:
            pass
        elif len(mine) == 1:
            loans = self._sums.lend(exchange.slot(0), mine.start, *weighted(mine.start))
            exchange.lend(loans)
        else:
            for slot, node in enumerate(self._nodes(pieces, mine)):
                self._sums.fill(exchange.slot(slot), node, weighted)
        if self._encoding is not None:
            self._encoding.scale = self._loss_scale()
        total, notes = exchange.reduce(what, pieces, held, encode(note()))
        shared = Shared(size, pieces, group.members, tuple((share.start, share.stop) for share in held))
        return Result([msgspec.msgpack.encode(shared), *notes], list(total))

    def exchanged(self, result: Result, counts: bool = True) -> Exchanged:
        """What a committed act of `reduce` gave. What it has left out is kept if the step counts: not if somebody
        stopped before it, or if `counts` is false, nor if an overflow makes everybody skip the update.
        """
        shared = msgspec.msgpack.decode(result.values[0], type=Shared)
        notes = decode(result.values[1:])
        is_kept = counts and not stopped(notes)
        if self._encoding is not None and is_kept and self._encoding.is_finite(Vector(*result.arrays)):
            self._encoding.residuals.commit(shared.pieces)
        check_agreement(shared.members, notes)
        vector, totals = self._totals.read(Vector(*result.arrays))
        return Exchanged(totals, notes, shared, vector)

    # What codecs leave out, in checkpoints -------------------------------------------------------------

    @property
    def sizes_left_out(self) -> tuple[int, ...] | None:
        """Of the arrays that a piece leaves out; None if the codec keeps nothing."""
        return self._encoding.residuals.sizes if self._encoding is not None else None

    @property
    def copied(self) -> int:
        """Bytes that this worker has sent as copies of what was left out."""
        return self._encoding.residuals.copied if self._encoding is not None else 0

    def left_out(self) -> dict[int, list[Array]]:
        """Between two steps: what pieces have left out so far, of those that this worker is to write. Collective.

        Every piece is one worker's, whoever is there; it is read in place.
        """
        if self._encoding is None:
            return {}
        residuals = self._encoding.residuals
        said = self._worker_group.gather("the checkpoint: what was left out", lambda group: residuals.note())
        return residuals.written(said.values, said.members.index(self._worker_group.me))

    def go_on_with(self, read: Callable[[Iterable[int]], Mapping[int, Sequence[Array]]]) -> None:
        """Before the first step: pieces have left out what a checkpoint says, as the chief `read`s it. Collective."""
        if self._encoding is None:
            return
        residuals, division = self._encoding.residuals, self._division

        def act(group: AbstractGroup) -> Result:
            shares = division.balance.shares(division.pieces, group.members)
            group.settle(residuals, shares)
            found: dict[int, Sequence[Array]] = {}
            for rank, share in enumerate(shares):
                given = _packed(read(share)) if group.rank == 0 else None
                if rank == 0:
                    passed = given
                else:
                    passed = group.pass_on("what was left out, from the checkpoint", 0, {rank}, given)
                if passed is not None and rank == group.rank:
                    found = _unpacked(passed, len(residuals.sizes))
            for slot, arrays in found.items():
                residuals.write(slot, arrays)
            written = group.gather("what was left out is there", msgspec.msgpack.encode(sorted(found)))
            return Result(written, [])

        told = self._worker_group.commit(act).values
        residuals.count([slot for slots in told for slot in msgspec.msgpack.decode(slots, type=list[int])])

    def close(self) -> None:
        self._close_exchange()
        if self._encoding is not None:
            self._encoding.residuals.close()

    def _close_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _nodes(self, pieces: int, share: range) -> Sequence[Node]:
        """What a worker with these pieces sends: sums of nodes, or, with a codec that has residuals, each piece."""
        if self._encoding is not None:
            return [Node(piece, piece + 1) for piece in share]
        return cover(pieces, share)

    def _open(self, group: AbstractGroup, slots: int) -> AbstractExchange:
        """The memory for exchanges within this group in which nobody has more partial sums than this."""
        if self._exchange is None or self._group is not group or slots > self._slots:
            self._on_reopen()
            self._close_exchange()
            self._exchange = group.open(self._schema.layout, slots, self._encoding)
            self._group, self._slots = group, slots
        return self._exchange

    def _check_same_schema(self, what: str) -> None:
        odd = self._worker_group.gather(f"{what}: what is exchanged", self._schema.fingerprint()).unlike_chiefs()
        if odd:
            raise Diverged(
                f"{what}: the model of {', '.join(odd)} has other variables, metrics or logs than the chief's. Every "
                "worker must build the same model: do not make it depend on the rank."
            )


def _packed(slots: Mapping[int, Sequence[Array]]) -> Result:
    return Result([msgspec.msgpack.encode(list(slots))], [array for arrays in slots.values() for array in arrays])


def _unpacked(packed: Result, count: int) -> dict[int, Sequence[Array]]:
    slots = msgspec.msgpack.decode(packed.values[0], type=list[int])
    return {slot: packed.arrays[count * number : count * (number + 1)] for number, slot in enumerate(slots)}
