"""Where peers connect. Strangers are handled side by side: one that idles or babbles delays nobody."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections import deque

from shoal.clock import Clock, Deadline, SystemClock
from shoal.errors import PeerTimeout, UsageError, WireError
from shoal.wire import addresses
from shoal.wire.connection import Connection
from shoal.wire.keys import Handshake, RunKey
from shoal.wire.messages import Codec
from shoal.wire.waits import READABLE, wait
from shoal.wire.wakeup import Wakeup

_BACKLOG = 128
_MAX_STRANGERS = 128  # connections that have proven nothing yet; the oldest makes room
_PATIENCE = 10.0  # seconds that a stranger has to prove the key


class Listener:
    """A listening socket that gives out only connections whose peer has proven the run's key."""

    def __init__(self, address: str, key: RunKey, clock: Clock | None = None) -> None:
        self._key = key
        self._clock = clock or SystemClock()
        self._strangers: dict[int, _Stranger] = {}  # oldest first
        self._proven: deque[socket.socket] = deque()
        where = addresses.parse(address)
        self._path = where.path if isinstance(where, addresses.UnixAddress) else None
        self._sock = _bind(where)
        self.address = str(where) if self._path else _bound_address(self._sock)
        # One epoll over the socket and all strangers: the whole listener is one descriptor to a selector.
        self._epoll = select.epoll()
        self._epoll.register(self._sock, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `poll_accept` has something to do."""
        return self._epoll.fileno()

    def accept(self, codec: Codec, deadline: Deadline, wake: Wakeup | None = None) -> Connection:
        """The next peer that proves the key; PeerTimeout if none does before the deadline."""
        while True:
            self._progress()
            if self._proven:
                return self._connection(codec)
            if not wait(self.fileno(), READABLE, deadline, wake):
                raise PeerTimeout(("a peer",), f"nobody with this run's key connected to {self.address} in time")

    def poll_accept(self, codec: Codec) -> list[Connection]:
        """Whoever has proven the key by now. Never waits."""
        self._progress()
        return [self._connection(codec) for _ in range(len(self._proven))]

    def close(self) -> None:
        """Stop listening, hang up on strangers, remove the socket's path. Calling it again does nothing."""
        if self._sock.fileno() < 0:
            return
        for stranger in self._strangers.values():
            stranger.sock.close()
        self._strangers.clear()
        while self._proven:
            self._proven.popleft().close()
        self._epoll.close()
        self._sock.close()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _connection(self, codec: Codec) -> Connection:
        return Connection(self._proven.popleft(), codec, f"a peer at {self.address}")

    def _progress(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._sock.fileno():
                self._welcome_strangers()
            elif fd in self._strangers:
                self._hear(fd)
        now = self._clock.now()
        for fd in [fd for fd, stranger in self._strangers.items() if stranger.until <= now]:
            self._hang_up(fd)

    def _welcome_strangers(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EPROTO):
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers:
                    self._hang_up(next(iter(self._strangers)))
                    continue
                raise
            sock.setblocking(False)
            if len(self._strangers) == _MAX_STRANGERS:
                self._hang_up(next(iter(self._strangers)))
            self._strangers[sock.fileno()] = _Stranger(sock, self._key, self._clock.now() + _PATIENCE)
            self._epoll.register(sock, select.EPOLLIN)
            self._hear(sock.fileno())  # its greeting is often here already

    def _hear(self, fd: int) -> None:
        stranger = self._strangers[fd]
        try:
            done = stranger.progress()
        except (WireError, OSError):  # not ours: no answer is the answer
            self._hang_up(fd)
            return
        if done:
            self._epoll.unregister(fd)
            self._proven.append(self._strangers.pop(fd).sock)

    def _hang_up(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._strangers.pop(fd).sock.close()


class _Stranger:
    """A connection that has proven nothing yet. It costs a socket and less than 100 bytes."""

    __slots__ = ("_heard", "handshake", "sock", "until")

    def __init__(self, sock: socket.socket, key: RunKey, until: float) -> None:
        self.sock = sock
        self.handshake = Handshake(key, connects=False)
        self.until = until
        self._heard = b""

    def progress(self) -> bool:
        """Read what is there; true once the key is proven. Raises when it is clear that it won't be."""
        while not self.handshake.done:
            try:
                more = self.sock.recv(self.handshake.wants - len(self._heard))
            except BlockingIOError:
                return False
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "hung up")
            self._heard += more
            if len(self._heard) == self.handshake.wants:
                answer = self.handshake.feed(self._heard)
                self._heard = b""
                if self.sock.send(answer, socket.MSG_NOSIGNAL) < len(answer):
                    raise BlockingIOError(errno.EAGAIN, "does not read its answer")
        return True


def _bind(where: addresses.Address) -> socket.socket:
    sock = socket.socket(where.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if isinstance(where, addresses.UnixAddress):
            os.fchmod(sock.fileno(), 0o600)  # before bind: the path never exists with wider rights
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where.target)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"the address {where} is in use by another process. Stop it, or choose another address "
                "(port 0, or no address at all, takes a free one)."
            ) from error
        raise UsageError(f"cannot listen at {where}: {error.strerror}. Choose another address.") from error
    return sock


def _bound_address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return str(addresses.TcpAddress(host, port))
