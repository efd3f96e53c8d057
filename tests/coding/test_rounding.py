"""Rounding to bfloat16 and int8: what is lost, what is not, and that nothing depends on where a vector is cut."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from shoal.codecs.rounded import Rounded
from shoal.codecs.rounding import BF16, INT8, AbstractRounding
from shoal.codecs.shapes import Array, ArrayShape

ROUNDINGS = pytest.mark.parametrize("rounding", [BF16, INT8], ids=lambda rounding: rounding.name)


def numbers(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def encoded(rounding: AbstractRounding, values: Array) -> Array:
    out = np.zeros(rounding.records(values.size), rounding.record)
    rounding.encode(values, out)
    return out


def decoded(rounding: AbstractRounding, records: Array, size: int) -> Array:
    out = np.empty(size, np.float32)
    rounding.decode(records, out)
    return out


def test_bf16_is_what_ml_dtypes_rounds_to():
    values = numbers(1001)
    assert (
        decoded(BF16, encoded(BF16, values), 1001).tobytes()
        == values.astype(ml_dtypes.bfloat16).astype(np.float32).tobytes()
    )


def test_int8_is_off_by_less_than_a_unit_and_by_nothing_on_average():
    values = numbers(496 * 2000)
    found = decoded(INT8, encoded(INT8, values), values.size)
    units = np.repeat(np.abs(values.reshape(-1, 496)).max(axis=1) / 127, 496)
    assert (np.abs(found - values) <= units * 1.001).all()
    assert abs(np.mean((found - values) / units)) < 4 * 0.3 / np.sqrt(values.size)


def test_what_is_smaller_than_half_a_unit_is_not_lost_on_average():
    """Rounding to the nearest would lose it in every step."""
    rows = np.full((4000, 496), 0.1 / 127, np.float32)
    rows[:, 0] = np.random.default_rng(1).uniform(0.9, 1.1, 4000)
    found = decoded(INT8, encoded(INT8, rows.reshape(-1)), rows.size).reshape(rows.shape)[:, 1:]
    assert found.mean() == pytest.approx(0.1 / 127, rel=0.02)


@ROUNDINGS
def test_zeros_stay_zeros(rounding: AbstractRounding):
    values = numbers(3000)
    values[::3] = 0
    values[496:992] = 0
    assert (decoded(rounding, encoded(rounding, values), 3000)[values == 0] == 0).all()


@ROUNDINGS
@pytest.mark.parametrize("size", [1, 31, 32, 33, 495, 496, 497, 200_000])
def test_any_number_of_elements_comes_back(rounding: AbstractRounding, size: int):
    values = numbers(size)
    assert decoded(rounding, encoded(rounding, values), size) == pytest.approx(values, abs=0.05)


@ROUNDINGS
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_overflow_reaches_the_optimizer(rounding: AbstractRounding, bad: float):
    """Loss scaling looks for what is not finite, in one piece of many."""
    values = numbers(2000)
    values[700] = bad
    total = np.zeros(rounding.records(2000), rounding.record)
    rounding.add(encoded(rounding, values), encoded(rounding, numbers(2000, seed=1)), total)
    found = decoded(rounding, total, 2000)
    assert not np.isfinite(found[700])
    assert np.isfinite(found[:496]).all()


@ROUNDINGS
@pytest.mark.parametrize("scale", [1e-44, 1e-39, 1e-30, 1e30, 3e38])
def test_the_largest_and_the_smallest_numbers(rounding: AbstractRounding, scale: float):
    values = (np.clip(numbers(496), -1, 1) * scale).astype(np.float32)
    found = decoded(rounding, encoded(rounding, values), 496)
    assert np.isfinite(found).all()
    assert np.abs(found.astype(float) - values).max() <= max(np.abs(values).max() * 0.0081, 1e-37)


@ROUNDINGS
def test_a_sum_is_the_same_wherever_the_vector_is_cut(rounding: AbstractRounding):
    size = rounding.elements * 700
    left, right = encoded(rounding, numbers(size, 1)), encoded(rounding, numbers(size, 2))
    whole, cut, place = (np.zeros(700, rounding.record) for _ in range(3))
    rounding.add(left, right, whole)
    for lo, hi in ((0, 1), (1, 300), (300, 699), (699, 700)):
        rounding.add(left[lo:hi], right[lo:hi], cut[lo:hi])
    place[:] = left
    rounding.add(place, right, place)
    assert whole.tobytes() == cut.tobytes() == place.tobytes()
    wanted = decoded(rounding, left, size) + decoded(rounding, right, size)
    assert decoded(rounding, whole, size) == pytest.approx(wanted, abs=0.06)


@ROUNDINGS
def test_pushes_have_the_same_form_where_it_makes_them_smaller(rounding: AbstractRounding):
    gradients = [numbers(5000), numbers(3), numbers(2000).astype(np.float64)]
    shapes = tuple(ArrayShape(array.dtype.name, array.size) for array in gradients)
    codec = Rounded(rounding)
    sent, state = codec.encode(gradients, None)
    assert state is None
    assert tuple(ArrayShape(array.dtype.name, array.size) for array in sent) == codec.shapes(shapes)
    assert sum(array.nbytes for array in sent) < 0.55 * sum(array.nbytes for array in gradients)
    found = codec.decode(sent, shapes)
    assert [array.dtype for array in found] == [array.dtype for array in gradients]
    assert (found[1] == gradients[1]).all()
    for array, gradient in zip(found, gradients, strict=True):
        assert array == pytest.approx(gradient, abs=0.05)
    sums = [np.ones_like(array) for array in gradients]
    codec.add(sent, sums)
    for total, array in zip(sums, found, strict=True):
        assert (total == array + 1).all()
