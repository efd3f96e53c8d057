"""Messages: typed nouns, encoded as msgpack, decoded into exactly the types that a listener named.

A message never carries tensors: those travel beside it as raw buffers (see frames.py).
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from shoal.errors import BadFrame


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all that is said on a connection. A subclass's docstring says who says it, and its promise."""


class MessageCodec:
    """Bytes to messages and back, for one closed set of message types."""

    def __init__(self, *types: type[Message]) -> None:
        if not types:
            raise ValueError("a Codec needs at least one message type")
        self._encode = msgspec.msgpack.Encoder().encode
        # Any: a union of types known only at run time has no static type.
        union: Any = Union[types]  # noqa: UP007
        self._decode = msgspec.msgpack.Decoder(union).decode
        self._names = ", ".join(t.__name__ for t in types)

    def encode(self, message: Message) -> bytes:
        return self._encode(message)

    def decode(self, data: bytes | bytearray | memoryview) -> Message:
        """The message in `data`, checked field by field; anything else is a BadFrame."""
        try:
            message: Message = self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadFrame(f"not a message that is understood here ({self._names}): {error}") from error
        return message
