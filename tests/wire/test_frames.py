from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadFrame, UsageError
from shoal.wire import frames


@given(
    st.binary(max_size=300), st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(0, frames.MAX_DESCRIPTORS)
)
def test_a_head_says_what_follows(header: bytes, sizes: list[int], descriptors: int) -> None:
    data = bytearray(b"xx" + frames.head(header, sizes, descriptors))
    prefix = frames.read_prefix(data, 2)
    assert prefix == (len(header), len(sizes), descriptors)
    assert prefix.length == len(data) - 2
    assert frames.read_sizes(data, 2, prefix) == tuple(sizes)


@pytest.mark.parametrize(
    "prefix", [(frames.MAX_HEADER + 1, 0, 0), (frames.MAX_HEADER, 1, 0), (0, 0, 17), (2**32 - 1, 9, 9)]
)
def test_too_much_is_refused_by_the_reader(prefix: tuple[int, int, int]) -> None:
    with pytest.raises(BadFrame, match="limits"):
        frames.read_prefix(bytearray(struct.pack("<IHH", *prefix)), 0)


def test_too_much_is_refused_by_the_writer() -> None:
    with pytest.raises(UsageError, match="too large for one frame"):
        frames.head(bytes(frames.MAX_HEADER + 1))
    with pytest.raises(UsageError, match="too large for one frame"):
        frames.head(b"", [1] * (frames.MAX_BUFFERS + 1))
    with pytest.raises(UsageError, match="16 descriptors"):
        frames.head(b"", descriptors=17)
    assert len(frames.head(bytes(frames.MAX_HEADER))) == frames.MAX_HEADER + frames.PREFIX_BYTES
