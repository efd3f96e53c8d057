"""How a codec (shoal.codecs) is used between workers: what of a vector has its form, and who encodes and decodes.

    | gradients ··encoded·· | the rest of each section, as it is |        one partial sum on its way

Everyone decodes the same bytes, also of its own partial sums, and adds in the tree's order: all have the same total.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shoal.codecs.codec import AbstractCodec
from shoal.codecs.shapes import ArrayShape, Shapes
from shoal.collectives.layout import Array, PieceRun, Vector, VectorLayout


class VectorEncoding:
    """The form of one kind of vector, and a worker's state, with which its next partial sums are encoded.

    It outlives views: the state goes on when a step has committed, and is what it was when one has to be done again.
    """

    def __init__(self, codec: AbstractCodec, layout: VectorLayout, gradients: Sequence[PieceRun]) -> None:
        """`gradients` are the first elements of their sections; what lies between two of them is no number."""
        self._codec = codec
        self._gradients = tuple(gradients)
        self._rest = tuple(_behind(layout, gradients))
        self._expected = _shapes(layout, self._gradients)
        encoded = codec.shapes(self._expected)
        self._split = len(encoded)
        self._shapes: Shapes = (*encoded, *_shapes(layout, self._rest))
        self._states: dict[int, Any] = {}  # by slot
        self._next: dict[int, Any] = {}  # if the step commits

    def encode(self, slot: int, vector: Vector) -> list[Array]:
        """What travels of a partial sum; the rest is in place."""
        encoded, self._next[slot] = self._codec.encode(_cut(vector, self._gradients), self._states.get(slot))
        return [*encoded, *_cut(vector, self._rest)]

    def commit(self) -> None:
        """What was encoded last counts."""
        self._states |= self._next
        self._next = {}

    def landing(self) -> list[Array]:
        """Memory for what `encode` gives on another worker."""
        return [np.empty(shape.size, shape.dtype) for shape in self._shapes]

    def write(self, encoded: Sequence[Array], into: Vector) -> None:
        """The partial sum, decoded."""
        decoded = self._codec.decode(encoded[: self._split], self._expected)
        places = [*_cut(into, self._gradients), *_cut(into, self._rest)]
        for place, array in zip(places, [*decoded, *encoded[self._split :]], strict=True):
            np.copyto(place, array)

    def add(self, encoded: Sequence[Array], into: Vector) -> None:
        """Adds the partial sum to another."""
        self._codec.add(encoded[: self._split], _cut(into, self._gradients))
        for place, array in zip(_cut(into, self._rest), encoded[self._split :], strict=True):
            np.add(place, array, out=place)


def _cut(vector: Vector, runs: Sequence[PieceRun]) -> list[Array]:
    return [vector[run.section][run.lo : run.hi] for run in runs]


def _behind(layout: VectorLayout, gradients: Sequence[PieceRun]) -> Iterator[PieceRun]:
    for number, section in enumerate(layout.sections):
        end = max((run.hi for run in gradients if run.section == number), default=0)
        if end < section.length:
            yield PieceRun(number, end, section.length)


def _shapes(layout: VectorLayout, runs: Sequence[PieceRun]) -> Shapes:
    return tuple(ArrayShape(layout.sections[run.section].dtype.name, run.hi - run.lo) for run in runs)
