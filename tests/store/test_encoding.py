"""What is encoded of an update, and what a server makes of it."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest
from tests.half_precision import Half

from shoal.codecs.codec import AsTheyAre
from shoal.errors import BadFrame
from shoal.store.values.encoding import Encoder, decode, travelling
from shoal.store.values.operations import Batch
from shoal.store.values.tensors import Array, ArrayShape, RowShapes, Shapes, ShardShapes

SHAPES = ShardShapes((), (ArrayShape("float32", 3), ArrayShape("float32", 2), ArrayShape("int64", 1)), exact=1)


def update(value: float, count: int) -> list[Array]:
    return [np.full(3, value, np.float32), np.full(2, -value, np.float32), np.full(1, count, np.int64)]


def test_only_gradients_change_their_form():
    assert [(shape.dtype, shape.size) for shape in travelling(Half(), SHAPES, 0)] == [
        ("float16", 3),
        ("float16", 2),
        ("int64", 1),
    ]
    encoded = Encoder(Half(), [SHAPES]).encode(0, update(1.5, 70_001))
    assert [array.dtype.name for array in encoded] == ["float16", "float16", "int64"]
    decoded = decode(Half(), encoded, SHAPES)
    assert [array.tolist() for array in decoded] == [[1.5] * 3, [-1.5] * 2, [70_001]]
    assert [array.dtype.name for array in decoded] == ["float32", "float32", "int64"]


def test_with_the_identity_nothing_is_done():
    class Untouched(AsTheyAre):
        def encode(self, *_: object) -> NoReturn:
            raise AssertionError("there is nothing to do")

        decode = shapes = encode

    encoder, sent = Encoder(Untouched(), [SHAPES]), update(1.5, 1)
    assert encoder.encode(0, sent) is sent
    assert encoder.encode_once(Batch(0, 0), {0: sent})[0] is sent
    assert travelling(Untouched(), SHAPES, 0) is SHAPES.gradients
    assert [id(array) for array in decode(Untouched(), sent, SHAPES)] == [id(array) for array in sent]


def test_what_one_update_leaves_out_comes_with_the_next_of_the_same_shard():
    encoder = Encoder(Half(), [SHAPES, SHAPES])
    sent = [encoder.encode(shard, update(2049.0, 1))[0][0] for shard in (0, 0, 1)]
    assert sent == [2048.0, 2050.0, 2048.0]


class Short(Half):
    def decode(self, encoded: list[Array], gradients: Shapes) -> list[Array]:
        return super().decode(encoded, gradients)[:1]


class Wide(Half):
    def decode(self, encoded: list[Array], gradients: Shapes) -> list[Array]:
        return [array.astype(np.float64) for array in encoded]


@pytest.mark.parametrize("codec", [Short(), Wide()])
def test_what_is_decoded_must_be_the_shards_gradients(codec: Half):
    encoded = Encoder(Half(), [SHAPES]).encode(0, update(1.0, 1))
    with pytest.raises(BadFrame, match="does not give the gradients"):
        decode(codec, encoded, SHAPES)


def test_rows_of_tables_travel_as_they_are() -> None:
    rows = RowShapes(10, 3)
    pushed = [np.array([1, 7]), np.ones(6, np.float32)]
    assert travelling(Half(), rows, 2) == rows.pushed(2)
    for travelled in (Encoder(Half(), [rows]).encode(0, pushed), decode(Half(), pushed, rows)):
        assert [id(array) for array in travelled] == [id(array) for array in pushed]
