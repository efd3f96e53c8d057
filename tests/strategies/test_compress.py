"""Which codec a strategy has, and what it says to what is none."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.codecs.codec import AsTheyAre
from shoal.codecs.lossy import LowRank
from shoal.codecs.shapes import ArrayShape
from shoal.errors import UsageError
from shoal.strategies.allreduce import AllReduce
from shoal.strategies.parameter_server import ParameterServer

SHAPES = (ArrayShape("float32", 3), ArrayShape("float32", 2))


def test_the_identity_copies_nothing():
    gradients = [np.ones(3, np.float32), np.ones(2, np.float32)]
    encoded, state = AsTheyAre().encode(gradients, None)
    assert state is None
    assert AsTheyAre().shapes(SHAPES) is SHAPES
    for travelled in (encoded, AsTheyAre().decode(encoded, SHAPES)):
        assert [id(array) for array in travelled] == [id(array) for array in gradients]


def test_the_identity_adds_in_place():
    sums = [np.full(3, 2.0, np.float32)]
    AsTheyAre().add([np.arange(3, dtype=np.float32)], sums)
    assert sums[0].tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("strategy", [AllReduce, ParameterServer])
def test_the_scripts_codec_comes_before_the_command_lines(strategy: type):
    assert strategy().codec_for(None).is_identity
    assert strategy().codec_for("bf16").rounding.name == "bf16"
    assert strategy(compress="int8").codec_for("bf16").rounding.name == "int8"
    assert strategy(compress=AsTheyAre()).codec_for(None).is_identity


def test_servers_refuse_what_makes_no_sense_for_them():
    with pytest.raises(UsageError, match="which have no rank"):
        ParameterServer(compress=LowRank(2))
    with pytest.raises(UsageError, match="measured between workers"):
        ParameterServer().codec_for("auto")
    assert AllReduce(compress="auto").codec_for(None).is_auto


@pytest.mark.parametrize("strategy", [AllReduce, ParameterServer])
@pytest.mark.parametrize(
    ("compress", "answer"),
    [
        ("zip", r"\(compress='zip'\): there is no codec of that name; there is auto, bf16"),
        ("lowrank:nan", r"\(compress='lowrank:nan'\): expected a rank, a whole number of at least 1"),
        ("lowrank:inf", r"\(compress='lowrank:inf'\): expected a rank, a whole number of at least 1"),
        ("topk:nan", r"\(compress='topk:nan'\): expected the part of all numbers that is sent"),
        (8, r'\(compress=8\): expected a codec or its name, such as "bf16"'),
    ],
)
def test_a_codec_that_does_not_exist_is_refused(strategy: type, compress: object, answer: str):
    with pytest.raises(UsageError, match=strategy.__name__ + answer):
        strategy(compress=compress)
