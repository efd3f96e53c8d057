"""Synchronous training: every step, all pieces' gradients are summed and every worker applies the same update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from shoal.collectives.group import AbstractExchange, AbstractGroup
from shoal.collectives.tree import cover, shares
from shoal.data.order import piece_bounds, pieces_of
from shoal.errors import CannotDistribute, Diverged, UsageError
from shoal.strategies.notes import Note, check_agreement, decode, encode
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schema import Array, Schema


class AllReduce(msgspec.Struct, frozen=True):
    """Synchronous data parallelism.

    `pieces` is the number of equal parts that each batch is cut into. With `pieces` fixed, the weights are the
    same bits for any number of workers. None: as many as there are workers, or what `shoal run --pieces` says.
    """

    pieces: int | None = None

    def __post_init__(self) -> None:
        if self.pieces is not None and self.pieces < 1:
            raise UsageError(
                f"AllReduce(pieces={self.pieces}): expected at least 1 piece. Leave it out for one piece per worker."
            )

    @contextlib.contextmanager
    def scope(self) -> Iterator[AllReduce]:
        """Models compiled inside train with this strategy, wherever `fit` is called."""
        _entered.append(self)
        try:
            yield self
        finally:
            _entered.pop()

    def pieces_for(self, told: int | None, workers: int) -> int:
        """How many pieces a run with this many workers uses; `told` is the command line's word."""
        pieces = self.pieces or told or workers
        if pieces < workers:
            raise UsageError(
                f"{pieces} pieces for {workers} workers: {workers - pieces} of them would have nothing to do. "
                f"Use at least {workers} pieces, or fewer workers."
            )
        return pieces


_entered: list[AllReduce] = []


def entered() -> AllReduce | None:
    """The strategy of the innermost scope that is open now."""
    return _entered[-1] if _entered else None


class Exchanged(msgspec.Struct, frozen=True):
    """What a step's exchange gave: every entry's total, in place, and everyone's notes by rank."""

    totals: list[Array]
    notes: list[Note]


class Reduction:
    """The exchanges of one fit or evaluate: who computes which pieces, and their sum along the piece tree."""

    def __init__(self, group: AbstractGroup, schema: Schema, pieces: int, what: str) -> None:
        self._group = group
        self._schema = schema
        self._pieces = pieces
        self._sums = PartialSums(schema)
        self._check_same_schema(what)
        slots = max(len(cover(n, share)) for n in range(1, pieces + 1) for share in self._shares(n))
        self._exchange: AbstractExchange = group.open(schema.layout, slots)

    def rows(self, size: int) -> Sequence[range]:
        """The rows of a batch of `size` samples that each rank computes."""
        pieces = pieces_of(size, self._pieces)
        bounds = piece_bounds(size, pieces)
        return [range(bounds[share.start], bounds[share.stop]) for share in self._shares(pieces)]

    def step(
        self,
        what: str,
        size: int,
        compute: Callable[[int, int, int], Sequence[Array]],
        note: Callable[[], Note],
    ) -> Exchanged:
        """Computes this worker's pieces and exchanges them.

        `compute(piece, low, high)` gives the arrays of the piece that holds rows [low, high) of the batch;
        `note()` is asked after the last piece.
        """
        pieces = pieces_of(size, self._pieces)
        bounds = piece_bounds(size, pieces)

        def weighted(piece: int) -> tuple[Sequence[Array], float]:
            low, high = bounds[piece], bounds[piece + 1]
            return compute(piece, low, high), (high - low) / size

        return self.reduce(what, pieces, weighted, note)

    def reduce(
        self,
        what: str,
        pieces: int,
        weighted: Callable[[int], tuple[Sequence[Array], float]],
        note: Callable[[], Note],
    ) -> Exchanged:
        """Sums the weighted arrays of `pieces` pieces; this worker computes its share of them."""
        held = self._shares(pieces)
        mine = held[self._group.rank]
        if len(mine) == 1:
            loans = self._sums.lend(self._exchange.slot(0), mine.start, *weighted(mine.start))
            self._exchange.lend(loans)
        else:
            for slot, node in enumerate(cover(pieces, mine)):
                self._sums.fill(self._exchange.slot(slot), node, weighted)
        return self._reduce(what, pieces, held, note())

    def abstain(self, what: str, size: int, note: Note) -> Exchanged:
        """Takes part in a step's exchange without computing anything: for a worker that has stopped."""
        pieces = pieces_of(size, self._pieces)
        return self._reduce(what, pieces, self._shares(pieces), note)

    def close(self) -> None:
        self._exchange.close()

    def _reduce(self, what: str, pieces: int, held: tuple[range, ...], note: Note) -> Exchanged:
        reduced = self._exchange.reduce(what, pieces, held, encode(note))
        notes = decode(reduced.notes)
        check_agreement(self._group.members, notes)
        return Exchanged(self._schema.views(reduced.total), notes)

    def _shares(self, pieces: int) -> tuple[range, ...]:
        return shares(pieces, (1.0,) * self._group.size)

    def _check_same_schema(self, what: str) -> None:
        prints = self._group.gather(f"{what}: what is exchanged", self._schema.fingerprint())
        odd = [m for m, value in zip(self._group.members, prints, strict=True) if value != prints[0]]
        if odd:
            raise Diverged(
                f"{what}: the model of {', '.join(odd)} has other variables, metrics or logs than the chief's. Every "
                "worker must build the same model: do not make it depend on the rank."
            )


def check_batch(batch_size: int, pieces: int) -> None:
    """Raises when a whole batch could not give every piece a sample."""
    if pieces > batch_size:
        raise CannotDistribute(
            f"{pieces} pieces need at least {pieces} samples in a batch; this batch has {batch_size}. "
            f"Use a batch_size of at least {pieces}, or fewer pieces."
        )
