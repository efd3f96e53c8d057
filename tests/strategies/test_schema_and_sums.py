"""What an exchange carries lies aligned, and a worker's partial sums are the nodes of the piece tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.collectives.layout import Vector
from shoal.collectives.tree import Node, cover
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schema import ALIGNMENT, Array, Combine, Entry, Schema

SCHEMA = Schema(
    [
        Entry("kernel", Combine.MEAN, "float32", (3, 5)),
        Entry("total", Combine.SUM, "float32", ()),
        Entry("counter", Combine.FIRST, "int32", (2,)),
        Entry("precise", Combine.MEAN, "float64", (4,)),
        Entry("half", Combine.MEAN, "bfloat16", (3,)),
    ]
)


def vector() -> Vector:
    layout = SCHEMA.layout
    return Vector(np.zeros(layout.f32, np.float32), np.zeros(layout.f64), np.zeros(layout.i64, np.int64))


def piece(number: int) -> tuple[Sequence[Array], float]:
    rng = np.random.default_rng(number)
    kernel = (rng.normal(size=(3, 5)) * 10.0 ** rng.integers(-6, 6, (3, 5))).astype(np.float32)
    half = rng.normal(size=3).astype(np.float32)
    arrays = [kernel, np.float32(number).reshape(()), np.array([number, 7], np.int32), rng.normal(size=4), half]
    return arrays, float(rng.uniform(0.1, 0.4))


def weighted(number: int) -> Array:
    """A piece's kernel as it enters the sum."""
    arrays, weight = piece(number)
    kernel: Array = arrays[0].reshape(-1) * np.float32(weight)
    return kernel


def by_definition(node: Node) -> Array:
    """The sum of a node, straight from the tree's definition."""
    if node.hi - node.lo == 1:
        return weighted(node.lo)
    size = node.hi - node.lo
    middle = node.lo + 2 ** int(np.ceil(np.log2(size)) - 1)
    total: Array = by_definition(Node(node.lo, middle)) + by_definition(Node(middle, node.hi))
    return total


def test_every_entry_is_aligned_in_its_section() -> None:
    itemsize = {"f32": 4, "f64": 8, "i64": 8}
    assert all(start * itemsize[section] % ALIGNMENT == 0 for section, start, _ in SCHEMA.places)
    assert [section for section, _, _ in SCHEMA.places] == ["f32", "f32", "i64", "f64", "f32"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.data())
def test_partial_sums_are_the_nodes_of_the_tree(pieces: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, pieces - 1))
    high = data.draw(st.integers(low + 1, pieces))
    sums = PartialSums(SCHEMA)
    for node in cover(pieces, range(low, high)):
        slot = vector()
        sums.fill(slot, node, piece)
        kernel, total, counter, _, _ = SCHEMA.views(slot)
        assert kernel.tobytes() == by_definition(node).tobytes()
        assert total[0] == sum(range(node.lo, node.hi))
        assert counter.tolist() == ([0, 7] if node.lo == 0 else [0, 0])  # only the first piece's


def test_an_overflow_passes_through_without_a_warning() -> None:
    sums = PartialSums(SCHEMA)
    slot = vector()

    def overflowing(number: int) -> tuple[Sequence[Array], float]:
        arrays, weight = piece(number)
        return [np.full((3, 5), np.inf if number else -np.inf, np.float32), *arrays[1:]], weight

    sums.fill(slot, Node(0, 2), overflowing)
    assert np.isnan(SCHEMA.views(slot)[0]).all()


def test_schemas_are_told_apart_by_shape_and_not_by_name() -> None:
    renamed = Schema([Entry("other", e.combine, e.dtype, e.shape) for e in SCHEMA.entries])
    assert renamed.fingerprint() == SCHEMA.fingerprint()
    assert Schema(SCHEMA.entries[:-1]).fingerprint() != SCHEMA.fingerprint()
