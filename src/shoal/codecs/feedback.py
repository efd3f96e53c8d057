"""What a lossy codec leaves out comes with the next gradients: error feedback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shoal.codecs.codec import AbstractSlotCodec
from shoal.codecs.lossy import AbstractLossy, LowRank
from shoal.codecs.shapes import Array, ArrayShape, Shapes
from shoal.errors import UsageError


class ErrorFeedback(AbstractSlotCodec):
    """Sends what a lossy codec makes of the gradient and of what it has left out so far.

    Arrays that the codec does not make smaller travel as they are, and nothing of them is left out.
    """

    def __init__(self, codec: AbstractLossy) -> None:
        if not isinstance(codec, AbstractLossy):
            raise UsageError(
                f"ErrorFeedback({codec!r}): expected TopK(…) or LowRank(…), which leave something out. What bf16 and "
                "int8 lose is lost by chance, and not worth keeping: give them to compress as they are."
            )
        self._codec = codec

    def __repr__(self) -> str:
        return f"ErrorFeedback({self._codec!r})"

    @property
    def by_slot(self) -> AbstractSlotCodec:
        return self

    @property
    def needs_matrices(self) -> bool:
        return isinstance(self._codec, LowRank)

    def shapes(self, gradients: Shapes) -> Shapes:
        return tuple(
            part
            for shape in gradients
            for part in (self._codec.shapes(shape) if self._codec.applies_to(shape) else (shape,))
        )

    def encode_slot(
        self, gradients: Sequence[Array], before: Sequence[Array] | None, after: Sequence[Array], scale: float = 1.0
    ) -> list[Array]:
        encoded: list[Array] = []
        shapes = [_shape_of(array) for array in gradients]
        with np.errstate(all="ignore"):
            # An overflow skips the step: nothing of it is kept, or it would never end.
            finite = all(np.isfinite(array).all() for array in gradients)
            for number, (gradient, shape) in enumerate(zip(gradients, shapes, strict=True)):
                rest = after[number]
                if not self._codec.applies_to(shape):
                    encoded.append(gradient.reshape(-1))
                    rest[:] = 0
                    continue
                if before is None:
                    np.copyto(rest, gradient.reshape(-1), casting="unsafe")
                elif scale == 1.0:
                    np.add(before[number], gradient.reshape(-1), out=rest, casting="unsafe")
                else:
                    np.multiply(before[number], np.float32(scale), out=rest)
                    np.add(rest, gradient.reshape(-1), out=rest, casting="unsafe")
                sent = self._codec.encode(rest, shape)
                self._codec.add(sent, rest, shape, sign=-1)
                encoded += sent
                if scale != 1.0:  # the next step's may be another
                    np.multiply(rest, np.float32(1.0 / scale), out=rest)
                if not finite:
                    rest[:] = before[number] if before is not None else 0
        return encoded

    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        after = [np.empty(array.size, np.float32) for array in gradients]
        return self.encode_slot(gradients, state, after), after

    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        decoded = [np.zeros(shape.size, shape.dtype) for shape in gradients]
        self._add(encoded, decoded, gradients)
        return decoded

    def add(self, encoded: Sequence[Array], sums: Sequence[Array]) -> None:
        self._add(encoded, sums, tuple(_shape_of(array) for array in sums))

    def _add(self, encoded: Sequence[Array], sums: Sequence[Array], shapes: Shapes) -> None:
        arrays = iter(encoded)
        with np.errstate(all="ignore"):
            for total, shape in zip(sums, shapes, strict=True):
                flat = total.reshape(-1)
                if self._codec.applies_to(shape):
                    self._codec.add(_take(arrays, len(self._codec.shapes(shape))), flat, shape)
                else:
                    flat += next(arrays)


def _shape_of(array: Array) -> ArrayShape:
    return ArrayShape(array.dtype.name, array.size, array.shape)


def _take(arrays: Iterator[Array], count: int) -> list[Array]:
    return [next(arrays) for _ in range(count)]
