from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shoal.collectives.arrays import ArraySpec, view
from shoal.errors import BadFrame, UsageError


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.array(3.5),
        np.empty((0, 4), np.int8),
        np.array(["ab", "c"]),
        np.array([b"abc"]),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.arange(3, dtype=">i4"),
    ],
    ids=lambda array: array.dtype.name,
)
def test_an_array_is_rebuilt_from_its_spec_and_its_bytes(array: np.ndarray[Any, Any]) -> None:
    again = ArraySpec.of(array).empty()
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    view(again)[:] = view(array)
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.array([object()]), np.zeros(2, [("a", int)])], ids=["objects", "records"])
def test_objects_do_not_travel(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(UsageError, match="can't travel between workers"):
        ArraySpec.of(array)


@pytest.mark.parametrize("dtype", ["O", "no such type", "f4,O", "<f9"])
def test_a_spec_of_another_kind_is_refused(dtype: str) -> None:
    with pytest.raises(BadFrame):
        ArraySpec(dtype, (1,)).empty()
    with pytest.raises(BadFrame):
        ArraySpec("f4", (-1,)).empty()
