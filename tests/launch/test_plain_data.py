"""What travels between a Python process and the workers of its function: plain data, unchanged; nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.launch.plain_data import Travels, check


class Keeper:
    pass


def there_and_back(folder: Path, value: Any, share: bool = False) -> Any:
    travels = Travels(folder)
    travels.write("value", value, "value")
    return travels.read("value", share)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        2**64 - 1,
        -(2**200),
        0.1,
        float("inf"),
        2 - 3j,
        "größe",
        b"\x00\xff",
        Path("data") / "train.csv",
        [1, [2.5, "x"], []],
        (1, (2, "x"), ()),
        {1, 2},
        frozenset({"a"}),
        {"loss": [1.0, 0.5], 3: None, True: 1},
        {(1, 2): "pair", "t": (1,)},
    ],
)
def test_plain_values_come_back_as_they_were(tmp_path, value):
    found = there_and_back(tmp_path, value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype="int16").reshape(3, 4)[:, ::2],
        np.zeros((0, 3)),
        np.array(7.5),
        np.array(["a", "längst"]),
        np.ones(5, ml_dtypes.bfloat16),
        np.random.default_rng(0).normal(size=(600, 300)),  # so large that it has a file of its own
    ],
    ids=["strided", "empty", "without axes", "texts", "bfloat16", "large"],
)
def test_arrays_come_back_as_they_were_and_may_be_written_to(tmp_path, array, share):
    found = there_and_back(tmp_path, {"x": array}, share)["x"]
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    found[...] = found
    assert bool(list(tmp_path.glob("*.array"))) == (array.nbytes > 2**20)


def test_a_number_of_numpys_stays_one(tmp_path):
    found = there_and_back(tmp_path, np.float32(0.5))
    assert found == 0.5
    assert type(found) is np.float32


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            {"model": [Keeper()]},
            r"returned\['model'\]\[0\] is of the type Keeper of .*, which can't travel",
        ),
        (np.array([None]), r"what train\(\) returned: an array of type object can't travel"),
        (lambda: 0, "is of the type function, which can't travel. What can: numbers, .*model.get_weights"),
    ],
)
def test_what_can_not_travel_is_named_with_its_place(value, problem):
    with pytest.raises(UsageError, match=problem):
        check(value, "what train() returned")


def test_what_holds_itself_is_named():
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UsageError, match="holds itself"):
        check(ring, "args")
