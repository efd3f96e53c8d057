"""A connection between a process and one that it starts, over which descriptors can travel."""

from __future__ import annotations

import socket

from shoal.wire.connection import Connection
from shoal.wire.messages import MessageCodec


def pair(codec: MessageCodec, peer: str) -> tuple[Connection, int]:
    """This process's end, and the descriptor of the other one, which the process to be started inherits."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Connection(mine, codec, peer), other.detach()


def inherited(fd: int, codec: MessageCodec, peer: str) -> Connection:
    """The end that was inherited. Needs no key: nobody else can hold it."""
    return Connection(socket.socket(fileno=fd), codec, peer)
