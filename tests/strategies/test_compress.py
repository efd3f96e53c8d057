"""The identity, and what strategies say to anything else."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.codecs.codec import AsTheyAre
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
def test_a_strategys_codec_is_what_it_was_given_or_the_identity(strategy: type):
    given = AsTheyAre()
    assert strategy(compress=given).codec is given
    assert strategy().codec.is_identity


@pytest.mark.parametrize("strategy", [AllReduce, ParameterServer])
def test_a_strategy_can_be_given_a_codec_and_refuses_what_does_not_exist_yet(strategy: type):
    assert strategy(compress=AsTheyAre()).compress is not None
    with pytest.raises(UsageError, match=rf"{strategy.__name__}\(compress='topk'\): .* Leave compress out\."):
        strategy(compress="topk")
