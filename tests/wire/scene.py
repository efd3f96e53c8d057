"""Two proven ends of one connection, and other props of this folder's tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from shoal.clock import Deadline
from shoal.wire import Connection, Listener, Message, MessageCodec, RunCertificate, RunKey, connect
from shoal.wire.addresses import parse


class Word(Message, frozen=True):
    """A message for tests."""

    n: int
    text: str = ""


class Other(Message, frozen=True):
    """A message that the tests' codec does not know."""

    n: int


CODEC = MessageCodec(Word)
KINDS = ("unix", "tcp", "tls")
CERTIFICATE = RunCertificate.new()


def soon() -> Deadline:
    """Long enough on a busy machine, short enough to fail a test."""
    return Deadline.after(10.0)


def address(kind: str, folder: Path) -> str:
    return f"unix:{folder}/s.sock" if kind == "unix" else f"{kind}:127.0.0.1:0"


@contextlib.contextmanager
def listening(kind: str, folder: Path) -> Iterator[tuple[Listener, RunKey]]:
    key = RunKey.new()
    listener = Listener(address(kind, folder), key, certificate=CERTIFICATE)
    try:
        yield listener, key
    finally:
        listener.close()


@contextlib.contextmanager
def pair(kind: str, folder: Path) -> Iterator[tuple[Connection, Connection]]:
    """The two ends of a connection; the first one's peer is called alice, the second one's bob."""
    ends: list[Connection] = []
    with listening(kind, folder) as (listener, key):
        thread = threading.Thread(target=lambda: ends.append(connect(listener.address, key, CODEC, soon())))
        thread.start()
        ends.append(listener.accept(CODEC, soon()))
        thread.join()
        ends[0].peer, ends[1].peer = "alice", "bob"
        try:
            yield ends[0], ends[1]
        finally:
            for end in ends:
                end.close()


def dial(where: str) -> socket.socket:
    """A bare socket to a listener: what a stranger has."""
    target = parse(where)
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(target.target)
    return sock
