"""How a codec with residuals (shoal.codecs) is used between workers: what of a vector has its form, and who encodes.

    | gradients ··encoded·· | the rest of each section, as it is |        one slot on its way

A slot is one piece's gradients: it is encoded once, with what was left out of it before, whoever computes it. Everyone
decodes the same bytes, also of its own slots, and adds in the slots' order: all have the same total, whatever their
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shoal.codecs.codec import AbstractSlotCodec
from shoal.codecs.shapes import ArrayShape, Shapes
from shoal.collectives.layout import Array, PieceRun, Vector, VectorLayout
from shoal.collectives.residuals import Residuals


class VectorEncoding:
    """The form of one kind of vector, and the residuals of its slots. It outlives views."""

    def __init__(
        self,
        codec: AbstractSlotCodec,
        layout: VectorLayout,
        gradients: Sequence[PieceRun],
        dims: Sequence[tuple[int, ...]],
        on_lost: Callable[[Sequence[int]], None] = lambda slots: None,
        copies: bool = False,
    ) -> None:
        """`gradients` are the first elements of their sections, arrays of these `dims`; what lies between two of them
        is no number.
        """
        self._codec = codec
        self._gradients = tuple(gradients)
        self._dims = tuple(dims)
        self._rest = tuple(_behind(layout, gradients))
        expected = _shapes(layout, self._gradients, self._dims)
        encoded = codec.shapes(expected)
        self._split = len(encoded)
        self._shapes: Shapes = (*encoded, *_shapes(layout, self._rest))
        self.scale = 1.0  # of the loss, in the step that goes on
        self.residuals = Residuals([shape.size for shape in expected], on_lost, copies=copies)

    def encode(self, slot: int, vector: Vector, into: Sequence[Array]) -> None:
        """What travels of a slot."""
        before, after = self.residuals.begin(slot)
        encoded = self._codec.encode_slot(self._cut(vector), before, after, self.scale)
        self.residuals.end(slot)
        for place, array in zip(into, [*encoded, *_cut(vector, self._rest)], strict=True):
            np.copyto(place, array)

    def landing(self) -> list[Array]:
        """Memory for what travels of a slot."""
        return [np.zeros(shape.size, shape.dtype) for shape in self._shapes]

    def add(self, encoded: Sequence[Array], into: Vector) -> None:
        """Adds a slot to a sum."""
        self._codec.add(encoded[: self._split], self._cut(into))
        for place, array in zip(_cut(into, self._rest), encoded[self._split :], strict=True):
            np.add(place, array, out=place)

    def is_finite(self, total: Vector) -> bool:
        """Whether all gradients of a sum are: no update is made of others."""
        return all(bool(np.isfinite(array).all()) for array in _cut(total, self._gradients))

    def _cut(self, vector: Vector) -> list[Array]:
        return [array.reshape(dims) for array, dims in zip(_cut(vector, self._gradients), self._dims, strict=True)]


def _cut(vector: Vector, runs: Sequence[PieceRun]) -> list[Array]:
    return [vector[run.section][run.lo : run.hi] for run in runs]


def _behind(layout: VectorLayout, gradients: Sequence[PieceRun]) -> Iterator[PieceRun]:
    for number, section in enumerate(layout.sections):
        end = max((run.hi for run in gradients if run.section == number), default=0)
        if end < section.length:
            yield PieceRun(number, end, section.length)


def _shapes(layout: VectorLayout, runs: Sequence[PieceRun], dims: Sequence[tuple[int, ...]] | None = None) -> Shapes:
    names = [layout.sections[run.section].dtype.name for run in runs]
    return tuple(
        ArrayShape(name, run.hi - run.lo, shape)
        for name, run, shape in zip(names, runs, dims or [()] * len(runs), strict=True)
    )
