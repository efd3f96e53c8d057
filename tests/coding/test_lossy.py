"""TopK and LowRank: what they send, what is left out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.codecs.choice import codec_of
from shoal.codecs.feedback import ErrorFeedback
from shoal.codecs.lossy import AbstractLossy, LowRank, TopK
from shoal.codecs.shapes import Array, ArrayShape
from shoal.errors import BadFrame, UsageError

SHAPES = [(200, 70), (10,), (5000,), (3, 3, 64, 32)]
CODECS = pytest.mark.parametrize(
    "lossy", [TopK(0.01), TopK(0.05, values="bf16"), TopK(0.1, values="int8"), LowRank(2)], ids=repr
)


def gradients(seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def shapes_of(arrays: list[Array]) -> tuple[ArrayShape, ...]:
    return tuple(ArrayShape(array.dtype.name, array.size, array.shape) for array in arrays)


@CODECS
def test_what_is_sent_and_what_is_left_out_are_the_gradient(lossy: AbstractLossy):
    codec, given = ErrorFeedback(lossy), gradients()
    sent, left = codec.encode(given, None)
    assert shapes_of([array.reshape(-1) for array in sent]) == tuple(
        ArrayShape(shape.dtype, shape.size, (shape.size,)) for shape in codec.shapes(shapes_of(given))
    )
    decoded = codec.decode(sent, shapes_of(given))
    for array, rest, gradient in zip(decoded, left, given, strict=True):
        assert array + rest == pytest.approx(gradient.reshape(-1), abs=1e-5)
    assert sum(array.nbytes for array in sent) < 0.4 * sum(array.nbytes for array in given)


@CODECS
def test_in_the_long_run_everything_arrives(lossy: AbstractLossy):
    """A gradient that stays the same has arrived as often as it was sent, but for what is left out in the end."""
    codec, given = ErrorFeedback(lossy), gradients()
    sums, state = [np.zeros_like(array) for array in given], None
    for _ in range(100):
        sent, state = codec.encode(given, state)
        codec.add(sent, sums)
    for total, gradient, rest in zip(sums, given, state, strict=True):
        assert total.reshape(-1) + rest == pytest.approx(100 * gradient.reshape(-1), abs=0.02)


def test_topk_sends_the_largest_of_every_4096():
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    codec = ErrorFeedback(TopK(0.01))
    sent, _ = codec.encode([values], None)
    (found,) = codec.decode(sent, shapes_of([values]))
    for start in (0, 4096, 8192):
        chunk, kept = values[start : start + 4096], found[start : start + 4096]
        largest = np.sort(np.argsort(np.abs(chunk))[-41:])
        assert np.flatnonzero(kept).tolist() == largest.tolist()
        assert (kept[largest] == chunk[largest]).all()


def test_low_rank_finds_a_matrix_of_that_rank():
    random = np.random.default_rng(2)
    matrix = (random.standard_normal((300, 2)) @ random.standard_normal((2, 100))).astype(np.float32)
    codec = ErrorFeedback(LowRank(2))
    sent, (left,) = codec.encode([matrix], None)
    assert sum(array.size for array in sent) == 2 * (300 + 100)
    assert left == pytest.approx(np.zeros(30_000), abs=1e-4)


@CODECS
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_is_sent_and_leaves_no_trace(lossy: AbstractLossy, bad: float):
    codec, given = ErrorFeedback(lossy), gradients()
    _, before = codec.encode(given, None)
    given[0][5, 5] = bad
    sent, after = codec.encode(given, before)
    decoded = codec.decode(sent, shapes_of(given))
    assert not np.isfinite(decoded[0]).all()
    assert all((one == other).all() for one, other in zip(before, after, strict=True))


@CODECS
def test_what_is_left_out_weighs_the_same_whatever_the_scale_of_the_loss(lossy: AbstractLossy):
    codec, given = ErrorFeedback(lossy), [gradients(seed) for seed in range(3)]
    left, shapes = None, shapes_of(given[0])
    arrived = [np.zeros(shape.size, np.float32) for shape in shapes]
    for arrays, scale in zip(given, (1024.0, 512.0, 1.0), strict=True):
        after = [np.empty(array.size, np.float32) for array in arrays]
        sent = codec.encode_slot([array * np.float32(scale) for array in arrays], left, after, scale)
        left = after
        arrived = [total + one / scale for total, one in zip(arrived, codec.decode(sent, shapes), strict=True)]
    for total, rest, *each in zip(arrived, left or (), *given, strict=True):
        assert total + rest == pytest.approx(sum(each).reshape(-1), abs=1e-4)


def test_a_place_that_is_none_is_refused():
    values = np.ones(8192, np.float32)
    codec = ErrorFeedback(TopK(0.01))
    sent, _ = codec.encode([values], None)
    sent[0] = sent[0].copy()
    sent[0][3] = 4096
    with pytest.raises(BadFrame, match="names place 4096"):
        codec.decode(sent, shapes_of([values]))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, True, "all", float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: object):
    with pytest.raises(UsageError, match="more than 0 and less than 1"):
        TopK(fraction)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "4"])
def test_a_rank_that_is_none_is_refused(rank: object):
    with pytest.raises(UsageError, match="a whole number, at least 1"):
        LowRank(rank)  # type: ignore[arg-type]


def test_what_makes_no_sense_together_is_refused():
    with pytest.raises(UsageError, match="TopK\\(values='fp4'\\): expected one of float32, bf16, int8"):
        TopK(0.01, values="fp4")
    for codec in ("int8", codec_of("int8", "test"), ErrorFeedback(TopK(0.01))):
        with pytest.raises(UsageError, match="expected TopK\\(…\\) or LowRank\\(…\\)"):
            ErrorFeedback(codec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "codec"),
    [
        ("topk:0.01", "TopK(fraction=0.01, values='float32')"),
        ("topk:0.1:int8", "TopK(fraction=0.1, values='int8')"),
        ("lowrank:4", "LowRank(rank=4)"),
    ],
)
def test_words_of_the_command_line(word: str, codec: str):
    assert repr(codec_of(word, "test")) == f"ErrorFeedback({codec})"


@pytest.mark.parametrize(
    "word", ["topk", "topk:", "topk:2", "topk:0.1:fp4", "lowrank", "lowrank:0", "lowrank:1.5", "bf16:1"]
)
def test_words_that_are_none(word: str):
    with pytest.raises(UsageError, match=r"test\(compress="):
        codec_of(word, "test")
