"""How gradients travel to servers in another form than they have: the place for compression. There are no codecs yet.

    worker   gradients ──encode──▶ encoded ··Push··▶ primary ··Order··▶ others
    server                                   encoded ──decode──▶ gradients, when the update is applied

Servers pass on what a worker sent, bit for bit, and each decodes it: replicas stay equal if `decode` always gives the
same for the same. A worker encodes an update once; what is sent again is the same.

Workers and servers have the same codec from the same script; nothing on the wire tells it. So a receiver knows before
what arrives, to the byte, as without a codec. A form whose size depends on the values is not possible; the largest k of
n values are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from shoal.errors import BadFrame
from shoal.store.tensors import AnyShapes, Array, RowShapes, Shapes


class AbstractCodec(ABC):
    """One way to write gradients, for the shards of one training. It holds no state: that is handed over."""

    @abstractmethod
    def shapes(self, gradients: Shapes) -> Shapes:
        """What gradients of these shapes become."""

    @abstractmethod
    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        """One shard's gradients as they travel, and the state for the next ones of this shard on this worker.

        `state` is None at first. It is the place for what was left out (error feedback).
        """

    @abstractmethod
    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        """Gradients of these shapes. `encoded` has the right types and sizes, but may say anything: BadFrame for what
        no encoder gives.
        """


def travelling(codec: AbstractCodec | None, shapes: AnyShapes, rows: int) -> Shapes:
    """What a push to a shard brings: its gradients in the codec's form, then the rest as it is. Rows go as they are."""
    if codec is None or isinstance(shapes, RowShapes):
        return shapes.pushed(rows)
    count = len(shapes.gradients) - shapes.exact
    return (*codec.shapes(shapes.gradients[:count]), *shapes.gradients[count:])


class Encoder:
    """A worker's side: each shard's state, with which the next update is encoded."""

    def __init__(self, codec: AbstractCodec, shapes: Sequence[AnyShapes]) -> None:
        self._codec = codec
        self._shapes = shapes
        self._states: dict[int, Any] = {}

    def encode(self, shard: int, arrays: Sequence[Array]) -> list[Array]:
        """What travels of an update. Once for each: what it leaves out goes into the next."""
        shapes = self._shapes[shard]
        if isinstance(shapes, RowShapes):
            return list(arrays)
        count = len(arrays) - shapes.exact
        encoded, self._states[shard] = self._codec.encode(arrays[:count], self._states.get(shard))
        return [*encoded, *arrays[count:]]


def decode(codec: AbstractCodec, arrays: Sequence[Array], shapes: AnyShapes) -> list[Array]:
    """A server's side: what `apply` takes."""
    if isinstance(shapes, RowShapes):
        return list(arrays)
    split = len(arrays) - shapes.exact
    expected = shapes.gradients[: len(shapes.gradients) - shapes.exact]
    decoded = codec.decode(arrays[:split], expected)
    if [(array.dtype.name, array.size) for array in decoded] != [(shape.dtype, shape.size) for shape in expected]:
        raise BadFrame(f"{type(codec).__name__} does not give the gradients that this shard has")
    return [*decoded, *arrays[split:]]
