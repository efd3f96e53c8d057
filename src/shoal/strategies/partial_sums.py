"""A worker's own part of the piece tree: pieces come in one by one, partial sums come out in their slots.

The sum of a node is the sum of its left child plus the sum of its right child, always in this order, so that
it does not matter which worker, or which of its slots, holds a node. With a codec that rounds, the gradients of every
node are rounded, those of single pieces too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from shoal.codecs.rounding import AbstractRounding
from shoal.collectives.layout import Loan, Vector
from shoal.collectives.tree import Node, split
from shoal.strategies.schema import Array, Combine, Schema

CHUNK = 1 << 16  # elements: a weighted chunk stays in the cache until it is added

LENT = 1 << 14  # elements: what is smaller is copied sooner than lent


class PartialSums:
    """Adds weighted pieces into one slot per node. Buffers are made once and used for every step."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._spare: list[list[Array]] = []  # one set of buffers per depth, for right children of several pieces
        self._chunk = {dtype: np.empty(CHUNK, dtype) for dtype in ("float32", "float64", "int64")}
        self._piece = np.empty(schema.layout.rounded, schema.layout.sections[3].dtype)  # one, before it is added

    def lend(self, slot: Vector, piece: int, arrays: Sequence[Array], weight: float) -> list[Loan]:
        """For a worker with a single piece: writes what is small or must be changed, and lends the rest as it is."""
        loans = []
        places = zip(self._schema.places, self._weighted(self._schema.views(slot), piece, arrays, weight), strict=True)
        for (section, start, _), (place, array, factor) in places:
            if section == "rounded":
                self._round(place, array, factor)
            elif factor == 1.0 and array.dtype == place.dtype and array.size >= LENT:
                loans.append(Loan(Vector._fields.index(section), start, array))
            else:
                _write(place, array, factor)
        return loans

    def fill(self, slot: Vector, node: Node, piece: Callable[[int], tuple[Sequence[Array], float]]) -> None:
        """Writes the sum of a node into a slot. `piece(p)` computes piece p: its arrays and its weight."""
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            self._fill(self._schema.views(slot), node, piece, depth=0)

    def filling(self, slot: Vector, node: Node) -> Generator[int, tuple[Sequence[Array], float], None]:
        """The same for pieces that come when they are ready: yields the piece that it needs next, left to right, and is
        sent its arrays and its weight. It is over when the slot holds the node's sum.
        """
        yield from self._filling(self._schema.views(slot), node, depth=0)

    def _filling(
        self, into: list[Array], node: Node, depth: int
    ) -> Generator[int, tuple[Sequence[Array], float], None]:
        low, high = node
        if high - low == 1:
            arrays, weight = yield low
            with np.errstate(all="ignore"):
                self._write(into, low, arrays, weight)
            return
        left, right = split(node)
        yield from self._filling(into, left, depth)
        if right[1] - right[0] == 1:
            arrays, weight = yield right[0]
            with np.errstate(all="ignore"):
                self._add(into, right[0], arrays, weight)
            return
        spare = self._spare_at(depth)
        yield from self._filling(spare, right, depth + 1)
        with np.errstate(all="ignore"):
            for total, part in zip(into, spare, strict=True):
                np.add(total, part, out=total)

    def _fill(
        self,
        into: list[Array],
        node: Node,
        piece: Callable[[int], tuple[Sequence[Array], float]],
        depth: int,
    ) -> None:
        low, high = node
        if high - low == 1:
            self._write(into, low, *piece(low))
            return
        left, right = split(node)
        self._fill(into, left, piece, depth)
        if right[1] - right[0] == 1:
            self._add(into, right[0], *piece(right[0]))
            return
        spare = self._spare_at(depth)
        self._fill(spare, right, piece, depth + 1)
        for (section, _, _), total, part in zip(self._schema.places, into, spare, strict=True):
            if section == "rounded":
                self._rounding.add(total, part, out=total)
            else:
                np.add(total, part, out=total)

    def _write(self, into: list[Array], piece: int, arrays: Sequence[Array], weight: float) -> None:
        weighted = self._weighted(into, piece, arrays, weight)
        for (section, _, _), (place, array, factor) in zip(self._schema.places, weighted, strict=True):
            if section == "rounded":
                self._round(place, array, factor)
            else:
                _write(place, array, factor)

    def _add(self, into: list[Array], piece: int, arrays: Sequence[Array], weight: float) -> None:
        weighted_arrays = self._weighted(into, piece, arrays, weight)
        for (section, lo, hi), (place, array, factor) in zip(self._schema.places, weighted_arrays, strict=True):
            if section == "rounded":
                records = self._piece[lo:hi]
                self._round(records, array, factor)
                self._rounding.add(place, records, out=place)
                continue
            if factor == 0.0:
                continue
            if factor == 1.0:
                np.add(place, array, out=place, casting="unsafe")
                continue
            chunk = self._chunk[str(place.dtype)]
            scale = place.dtype.type(factor)
            for start in range(0, place.size, CHUNK):
                part = place[start : start + CHUNK]
                weighted = chunk[: part.size]
                np.multiply(array[start : start + CHUNK], scale, out=weighted, casting="unsafe")
                np.add(part, weighted, out=part)

    def _round(self, place: Array, array: Array, factor: float) -> None:
        values = array.astype(np.float32, copy=False)
        self._rounding.encode(values if factor == 1.0 else values * np.float32(factor), place)

    @property
    def _rounding(self) -> AbstractRounding:
        assert self._schema.rounding is not None
        return self._schema.rounding

    def _weighted(
        self, into: list[Array], piece: int, arrays: Sequence[Array], weight: float
    ) -> list[tuple[Array, Array, float]]:
        factors = {Combine.MEAN: weight, Combine.SUM: 1.0, Combine.FIRST: 1.0 if piece == 0 else 0.0}
        return [
            (place, array.reshape(-1), factors[entry.combine])
            for place, array, entry in zip(into, arrays, self._schema.entries, strict=True)
        ]

    def _spare_at(self, depth: int) -> list[Array]:
        while len(self._spare) <= depth:
            arrays = [np.zeros(section.length, section.dtype) for section in self._schema.layout.sections]
            self._spare.append(self._schema.views(Vector(*arrays)))
        return self._spare[depth]


def _write(place: Array, array: Array, factor: float) -> None:
    if factor == 1.0:
        np.copyto(place, array, casting="unsafe")
    else:
        np.multiply(array, place.dtype.type(factor), out=place, casting="unsafe")
