"""How a codec (shoal.codecs) is used on the way to servers: what of a push has its form, and who encodes and decodes.

    worker   gradients ──encode──▶ encoded ··Push··▶ primary ··Order··▶ others
    server                                   encoded ──decode──▶ gradients, when the update is applied

Servers pass on what a worker sent, bit for bit, and each decodes it: replicas stay equal, since `decode` always gives
the same for the same. A worker encodes an update once; what is sent again is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.codecs.codec import AbstractCodec
from shoal.errors import BadFrame
from shoal.store.values.operations import Assignment, Operation
from shoal.store.values.tensors import AnyShapes, Array, RowShapes, Shapes


def travelling(codec: AbstractCodec, shapes: AnyShapes, rows: int) -> Shapes:
    """What a push to a shard brings: its gradients in the codec's form, then the rest as it is. Rows go as they are."""
    if codec.is_identity or isinstance(shapes, RowShapes):
        return shapes.pushed(rows)
    count = len(shapes.gradients) - shapes.exact
    return (*codec.shapes(shapes.gradients[:count]), *shapes.gradients[count:])


class Encoder:
    """A worker's side: each shard's state, with which the next update is encoded."""

    def __init__(self, codec: AbstractCodec, shapes: Sequence[AnyShapes]) -> None:
        self._codec = codec
        self._shapes = shapes
        self._states: dict[int, Any] = {}
        self._last: tuple[Operation, dict[int, Sequence[Array]]] | None = None  # of `encode_once`

    def encode_once(
        self, operation: Operation, parcels: Mapping[int, Sequence[Array]]
    ) -> Mapping[int, Sequence[Array]]:
        """What travels of an operation that may be delivered again, perhaps to other shards: what is sent again is the
        same. Weights that are assigned travel as they are.
        """
        if self._codec.is_identity or isinstance(operation, Assignment):
            return parcels
        if self._last is None or self._last[0] != operation:
            self._last = (operation, {})
        known = self._last[1]
        for shard in parcels.keys() - known.keys():
            known[shard] = self.encode(shard, parcels[shard])
        return {shard: known[shard] for shard in parcels}

    def encode(self, shard: int, arrays: Sequence[Array]) -> Sequence[Array]:
        """What travels of an update to a shard. What it leaves out goes into the next. Rows go as they are."""
        shapes = self._shapes[shard]
        if self._codec.is_identity or isinstance(shapes, RowShapes):
            return arrays
        count = len(arrays) - shapes.exact
        encoded, self._states[shard] = self._codec.encode(arrays[:count], self._states.get(shard))
        return [*encoded, *arrays[count:]]


def decode(codec: AbstractCodec, arrays: Sequence[Array], shapes: AnyShapes) -> list[Array]:
    """A server's side: what `apply` takes."""
    if codec.is_identity or isinstance(shapes, RowShapes):
        return list(arrays)
    split = len(arrays) - shapes.exact
    expected = shapes.gradients[: len(shapes.gradients) - shapes.exact]
    decoded = codec.decode(arrays[:split], expected)
    if [(array.dtype.name, array.size) for array in decoded] != [(shape.dtype, shape.size) for shape in expected]:
        raise BadFrame(f"{type(codec).__name__} does not give the gradients that this shard has")
    return [*decoded, *arrays[split:]]
