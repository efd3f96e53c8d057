"""Nested batches come apart and together again, and their skeleton travels as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.structure import flatten, rebuild
from shoal.errors import CannotDistribute

LEAVES = st.integers()
STRUCTURES = st.recursive(
    st.one_of(LEAVES, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(STRUCTURES)
def test_a_structure_comes_back_after_its_skeleton_travelled(structure: Any) -> None:
    leaves, skeleton = flatten(structure)
    travelled = msgspec.json.decode(msgspec.json.encode(skeleton))
    assert rebuild(travelled, leaves) == structure


def test_dict_entries_are_sorted_by_name() -> None:
    assert flatten({"b": 1, "a": 2})[0] == [2, 1]


def test_a_dict_with_keys_that_are_no_names_is_refused() -> None:
    with pytest.raises(CannotDistribute, match="expected strings"):
        flatten({1: 2})
