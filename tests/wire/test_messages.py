from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadFrame
from shoal.wire import Message, MessageCodec

from .scene import CODEC, Other, Word


class Note(Message, frozen=True):
    value: bytes
    names: tuple[str, ...] = ()


@given(st.integers(-(2**63), 2**63 - 1), st.text())
def test_a_message_comes_back_as_it_was(n: int, text: str) -> None:
    assert CODEC.decode(CODEC.encode(Word(n, text))) == Word(n, text)


def test_a_codec_tells_its_types_apart() -> None:
    codec = MessageCodec(Word, Note)
    for message in (Word(1, "x"), Note(b"\x00\xff", ("a", "b"))):
        assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        MessageCodec(Other).encode(Other(1)),
        msgspec.msgpack.encode({"type": "Word", "n": "one"}),
        msgspec.msgpack.encode({"type": "Word", "n": 1, "extra": 2}),
        msgspec.msgpack.encode({"type": "Word"}),
        CODEC.encode(Word(1)) + b"\x00",
        b"",
        b"\x91" * 100_000,
    ],
    ids=["another type", "wrong field type", "unknown field", "missing field", "trailing bytes", "empty", "deep"],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame, match="Word"):
        CODEC.decode(data)


@given(st.binary(max_size=200))
def test_garbage_is_a_bad_frame_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(BadFrame):
        assert isinstance(CODEC.decode(data), Word)
