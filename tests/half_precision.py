"""A toy codec: gradients in half precision. What that loses comes with the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.codecs.codec import AbstractCodec
from shoal.codecs.shapes import Array, ArrayShape, Shapes


class Half(AbstractCodec):
    """It counts how often it is used, by all threads."""

    def __init__(self) -> None:
        self.encoded = self.decoded = self.added = 0

    @property
    def is_identity(self) -> bool:
        return False

    def shapes(self, gradients: Shapes) -> Shapes:
        return tuple(ArrayShape("float16", shape.size) for shape in gradients)

    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        self.encoded += 1
        wanted = [gradient + lost for gradient, lost in zip(gradients, state or [0.0] * len(gradients), strict=True)]
        sent = [array.astype(np.float16) for array in wanted]
        return sent, [array - half for array, half in zip(wanted, sent, strict=True)]

    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        self.decoded += 1
        return [array.astype(shape.dtype) for array, shape in zip(encoded, gradients, strict=True)]

    def add(self, encoded: Sequence[Array], sums: Sequence[Array]) -> None:
        self.added += 1
        for half, total in zip(encoded, sums, strict=True):
            total += half
