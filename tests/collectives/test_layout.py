from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.codecs.rounding import BF16, INT8
from shoal.collectives.adder import CHUNK_BYTES, Adder
from shoal.collectives.layout import LINE, PAGE, Array, Vector, VectorLayout
from shoal.collectives.tree import Node, additions
from shoal.errors import UsageError

counts = (st.integers(0, 5000), st.integers(0, 600), st.integers(0, 600))
layouts = st.one_of(
    st.builds(VectorLayout, *counts),
    *(st.builds(VectorLayout, *counts, st.integers(0, 40), st.just(rounding)) for rounding in (BF16, INT8)),
)


def filled(layout: VectorLayout, seed: int) -> Vector:
    vector = layout.vector(bytearray(layout.nbytes))  # type: ignore[arg-type]
    random = np.random.default_rng(seed)
    vector.f32[:] = random.standard_normal(layout.f32)
    vector.f64[:] = random.standard_normal(layout.f64)
    vector.i64[:] = random.integers(-(2**40), 2**40, layout.i64)
    if layout.rounding is not None:
        values = random.standard_normal(layout.rounded * layout.rounding.elements).astype(np.float32)
        layout.rounding.encode(values, vector.rounded)
    return vector


def added(layout: VectorLayout, section: int, left: Array, right: Array) -> Array:
    if section < 3 or layout.rounding is None:
        return left + right if section < 3 else left
    layout.rounding.add(left, right, total := np.zeros_like(left))
    return total


@given(layouts)
def test_sections_do_not_overlap_and_start_on_cache_lines(layout: VectorLayout) -> None:
    end = 0
    for section in sorted(layout.sections, key=lambda section: (section.offset, section.end)):
        assert section.offset >= end
        assert section.offset % LINE == 0
        end = section.end
    assert end <= layout.nbytes < end + LINE + LINE
    memory = bytearray(layout.nbytes)
    vector = layout.vector(memory)  # type: ignore[arg-type]
    vector.f32[:], vector.f64[:], vector.i64[:] = 1, 2, 3
    assert (vector.f32 == 1).all()
    assert (vector.f64 == 2).all()
    assert (vector.i64 == 3).all()


@given(layouts, st.integers(1, 9), st.sampled_from([LINE, PAGE]))
def test_slices_are_all_of_the_vector_once(layout: VectorLayout, parts: int, grain: int) -> None:
    grain = max(grain, layout.grain)
    slices = layout.slices(parts, grain)
    assert [byte for part in slices for byte in part] == list(range(layout.nbytes))
    assert all(part.start % grain == 0 for part in slices if part)
    seen = [np.zeros(section.length, int) for section in layout.sections]
    for part in slices:
        for section, lo, hi in layout.runs(part):
            seen[section][lo:hi] += 1
    assert all((count == 1).all() for count in seen)


@given(layouts, st.integers(1, 6), st.integers(1, 4))
def test_adding_slice_by_slice_gives_the_bits_of_the_tree(layout: VectorLayout, pieces: int, parts: int) -> None:
    leaves = tuple(Node(i, i + 1) for i in range(pieces))
    program = additions(pieces, leaves)
    inputs = [filled(layout, seed) for seed in range(pieces)]
    before = [array.tobytes() for vector in inputs for array in vector]
    result = filled(layout, 99)
    adder = Adder(layout)
    for part in layout.slices(parts, layout.grain):
        adder.add(program, inputs, result, part)
    for section in range(4):
        registers: dict[int, Array] = {i: vector[section] for i, vector in enumerate(inputs)}
        for left, right, into in program:
            registers[into] = added(layout, section, registers[left], registers[right])
        expected = registers[~0] if program else registers[0]
        assert result[section].tobytes() == expected.tobytes()
    assert before == [array.tobytes() for vector in inputs for array in vector], "inputs stay intact"


def test_vectors_of_many_chunks_are_added_whole() -> None:
    layout = VectorLayout(3 * CHUNK_BYTES // 4 + 17, 5, CHUNK_BYTES // 8 + 1)
    inputs = [filled(layout, seed) for seed in range(5)]
    result = filled(layout, 99)
    Adder(layout).add(additions(5, tuple(Node(i, i + 1) for i in range(5))), inputs, result)
    a, b, c, d, e = (vector.f32 for vector in inputs)
    assert result.f32.tobytes() == (((a + b) + (c + d)) + e).tobytes()
    np.testing.assert_array_equal(result.i64, sum(vector.i64 for vector in inputs))


def test_an_overflow_is_data_and_no_warning() -> None:
    layout = VectorLayout(2)
    inputs = [filled(layout, 0) for _ in range(2)]
    inputs[0].f32[:] = [3e38, np.inf]
    inputs[1].f32[:] = [3e38, -np.inf]
    result = filled(layout, 1)
    Adder(layout).add(additions(2, (Node(0, 1), Node(1, 2))), inputs, result)
    assert np.isinf(result.f32[0])
    assert np.isnan(result.f32[1])


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        VectorLayout(-1)


def test_private_memory_lies_on_a_cache_line():
    for f32 in (1, 100, 5000):
        vector = VectorLayout(f32, 3, 2).vector(VectorLayout(f32, 3, 2).memory())
        assert all(section.ctypes.data % 64 == 0 for section in vector)
