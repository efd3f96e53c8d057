"""Parameters are cut into shards of equal bytes: every element once, and nothing where the optimizer can't bear it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.store.decisions.shards import GRAIN, SMALL, Needs, Parameter, into_shards

unhurried = settings(deadline=None)
DTYPES = ("float32", "float16", "bfloat16", "float64")


@st.composite
def parameters(draw: st.DrawFn, needs: tuple[Needs, ...] = tuple(Needs)) -> list[Parameter]:
    shapes = st.lists(st.integers(0, 300), min_size=0, max_size=3).map(tuple)
    large = st.tuples(st.integers(1, 3000), st.integers(1, 3000))
    kinds = st.tuples(shapes | large, st.sampled_from(DTYPES), st.sampled_from(needs))
    many = draw(st.lists(kinds, min_size=1, max_size=30))
    return [Parameter(f"v{i}", dtype, shape, need) for i, (shape, dtype, need) in enumerate(many)]


@unhurried
@given(parameters(), st.integers(1, 12))
def test_every_element_is_in_exactly_one_shard(given, count):
    shards = into_shards(given, count)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    for parameter in given:
        ranges = sorted((r.start, r.stop) for s in shards for r in s.ranges if r.parameter == parameter.name)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == parameter.size
        assert all(stop == start for (_, stop), (start, _) in pairwise(ranges))


@unhurried
@given(parameters(), st.integers(1, 12))
def test_a_shard_knows_its_bytes_and_none_is_empty(given, count):
    itemsize = {parameter.name: parameter.itemsize for parameter in given}
    for shard in into_shards(given, count):
        assert shard.ranges
        assert shard.bytes == sum((r.stop - r.start) * itemsize[r.parameter] for r in shard.ranges)


@unhurried
@given(parameters(), st.integers(1, 12))
def test_what_must_be_whole_is_not_cut_and_what_belongs_together_is_together(given, count):
    shards = into_shards(given, count)
    holders = {p.name: {s.number for s in shards for r in s.ranges if r.parameter == p.name} for p in given}
    for parameter in given:
        assert len(holders[parameter.name]) == 1 or (parameter.needs is Needs.SLICES and parameter.bytes > SMALL)
    assert len(set().union(*(holders[p.name] for p in given if p.needs is Needs.TOGETHER))) <= 1


@unhurried
@given(parameters(needs=(Needs.SLICES,)), st.integers(1, 12))
def test_what_can_be_cut_is_balanced(given, count):
    shards = into_shards(given, count)
    total = sum(parameter.bytes for parameter in given)
    most = max(shard.bytes for shard in shards)
    rounding = count * GRAIN * 8
    assert most <= total / count + SMALL + rounding


@unhurried
@given(parameters(needs=(Needs.WHOLE,)), st.integers(1, 12))
def test_what_can_not_be_cut_is_packed_about_as_well_as_it_can_be(given, count):
    total = sum(parameter.bytes for parameter in given)
    most = max(shard.bytes for shard in into_shards(given, count))
    assert most <= total / count + max(parameter.bytes for parameter in given)


@unhurried
@given(parameters(), st.integers(1, 12))
def test_the_same_parameters_give_the_same_shards(given, count):
    assert into_shards(given, count) == into_shards(list(given), count)


def test_one_large_tensor_is_spread_over_all_shards_and_small_ones_lie_beside_it():
    model = [
        Parameter("kernel", "float32", (1024, 1024)),
        Parameter("bias", "float32", (1024,)),
        Parameter("embedding", "float32", (100, 64), Needs.WHOLE),
    ]
    shards = into_shards(model, 4)
    assert [[r.parameter for r in shard.ranges] for shard in shards] == [
        ["kernel", "embedding"],
        ["kernel", "bias"],
        ["kernel"],
        ["kernel"],
    ]
    assert max(s.bytes for s in shards) - min(s.bytes for s in shards) <= 4 * GRAIN * 4


def test_with_a_global_norm_everything_is_in_one_shard():
    model = [Parameter(f"v{i}", "float32", (500, 500), Needs.TOGETHER) for i in range(3)]
    assert len(into_shards(model, 4)) == 1


def test_few_parameters_make_few_shards():
    assert len(into_shards([Parameter("a", "float32", (3,)), Parameter("b", "float32", (3,))], 8)) == 2


def test_bad_input_is_named():
    with pytest.raises(UsageError, match="no parameters"):
        into_shards([], 2)
    with pytest.raises(UsageError, match="into 0 shards"):
        into_shards([Parameter("a", "float32", (3,))], 0)
    with pytest.raises(UsageError, match="same name: a"):
        into_shards([Parameter("a", "float32", (3,))] * 2, 1)
