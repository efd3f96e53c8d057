"""Where peers connect. Strangers are handled side by side: one that idles or babbles delays nobody.

On a `tls:` address a stranger first does the TLS handshake and then proves the key inside it, all before the same
deadline, which counts from the moment it connected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from shoal.clock import Clock, Deadline, SystemClock
from shoal.errors import BadFrame, PeerTimeout, UsageError, WireError
from shoal.wire import addresses
from shoal.wire.certificates import RunCertificate
from shoal.wire.connection import Connection
from shoal.wire.keys import Handshake, RunKey
from shoal.wire.messages import MessageCodec
from shoal.wire.waits import READABLE, wait_any
from shoal.wire.wakeup import Wakeup

if TYPE_CHECKING:
    import ssl

    from shoal.wire.tls import TlsChannel

_BACKLOG = 128
_MAX_STRANGERS = 128  # connections that have proven nothing yet; the oldest makes room
_PATIENCE = 10.0  # seconds that a stranger has to prove the key
_TLS_OPENING = b"\x16"  # the first byte of whoever speaks TLS


class Listener:
    """A listening socket that gives out only connections whose peer has proven the run's key."""

    def __init__(
        self, address: str, key: RunKey, clock: Clock | None = None, certificate: RunCertificate | None = None
    ) -> None:
        """`certificate` is what a listener beyond loopback shows; UsageError if it is missing there."""
        self._clock = clock or SystemClock()
        self._strangers: dict[int, _Stranger] = {}  # oldest first
        self._proven: deque[socket.socket | TlsChannel] = deque()
        where = addresses.parse(address)
        self._gate = _Gate(key)
        if isinstance(where, addresses.TlsAddress):
            self._gate = _tls_gate(key, where, certificate)
        self._unix = where if isinstance(where, addresses.UnixAddress) else None
        self._lock = threading.Lock()  # against `restore` while it is closed
        sock = _bind(where)
        self._socks = {sock.fileno(): sock}
        bound = _bound(where, sock, certificate)
        self.address = str(bound)  # for others to connect to; with the pin, where there is a certificate
        self._name = bound.place if isinstance(bound, addresses.TlsAddress) else self.address
        # One epoll over the socket and all strangers: the whole listener is one descriptor to a selector.
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `poll_accept` has something to do."""
        return self._epoll.fileno()

    @property
    def name(self) -> str:
        """Where it listens, to speak about."""
        return self._name

    def accept(self, codec: MessageCodec, deadline: Deadline, wake: Wakeup | None = None) -> Connection:
        """The next peer that proves the key; PeerTimeout if none does before the deadline."""
        return accept_any([self], codec, deadline, wake)

    def try_accept(self, codec: MessageCodec) -> Connection | None:
        """One who has proven the key by now, if anybody has. Never waits."""
        self._progress()
        return self._connection(codec) if self._proven else None

    def poll_accept(self, codec: MessageCodec) -> list[Connection]:
        """Whoever has proven the key by now. Never waits."""
        self._progress()
        return [self._connection(codec) for _ in range(len(self._proven))]

    def restore(self) -> bool:
        """Listen anew if somebody has removed the socket's path and there is a folder for it. Whether it does.

        May be called from any thread. Who has connected before stays.
        """
        if self._unix is None or os.path.lexists(self._unix.path):
            return False
        with self._lock:
            if not self._socks:
                return False
            try:
                sock = _bind(self._unix)
            except UsageError:
                return False
            self._socks[sock.fileno()] = sock
            self._epoll.register(sock, select.EPOLLIN)
            return True

    def close(self) -> None:
        """Stop listening, hang up on strangers, remove the socket's path. Calling it again does nothing."""
        with self._lock:
            socks, self._socks = self._socks, {}
        if not socks:
            return
        for stranger in self._strangers.values():
            stranger.channel.close()
        self._strangers.clear()
        while self._proven:
            self._proven.popleft().close()
        self._epoll.close()
        for sock in socks.values():
            sock.close()
        if self._unix is not None:
            with contextlib.suppress(OSError):  # it is gone, or the folder is not what it was
                os.unlink(self._unix.path)

    def _connection(self, codec: MessageCodec) -> Connection:
        return Connection(self._proven.popleft(), codec, f"a peer at {self._name}")

    def _progress(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd in self._socks:
                self._welcome_strangers(self._socks[fd])
            elif fd in self._strangers:
                self._hear(fd)
        now = self._clock.now()
        for fd in [fd for fd, stranger in self._strangers.items() if stranger.until <= now]:
            self._hang_up(fd)

    def _welcome_strangers(self, listening: socket.socket) -> None:
        for _ in range(_BACKLOG):  # a crowd that never ends must not keep us here
            try:
                sock, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.EPROTO):
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers:
                    self._make_room()
                    continue
                raise
            sock.setblocking(False)
            if len(self._strangers) == _MAX_STRANGERS:
                self._make_room()
            self._strangers[sock.fileno()] = _Stranger(sock, self._gate, self._clock.now() + _PATIENCE)
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
            self._proven.append(self._strangers.pop(fd).channel)

    def _make_room(self) -> None:
        """Hang up on the oldest stranger that has said nothing; if all have, on the oldest."""
        silent = (fd for fd, stranger in self._strangers.items() if stranger.silent)
        self._hang_up(next(silent, next(iter(self._strangers))))

    def _hang_up(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._strangers.pop(fd).channel.close()


def accept_any(
    listeners: Sequence[Listener], codec: MessageCodec, deadline: Deadline, wake: Wakeup | None = None
) -> Connection:
    """The next peer that proves the key to any of the listeners; PeerTimeout if none does before the deadline."""
    while True:
        for listener in listeners:
            if (connection := listener.try_accept(codec)) is not None:
                return connection
        if not wait_any([listener.fileno() for listener in listeners], READABLE, deadline, wake):
            where = " or ".join(listener.name for listener in listeners)
            raise PeerTimeout(("a peer",), f"nobody with this run's key connected to {where} in time")


class _Gate(NamedTuple):
    """What a stranger has to pass."""

    key: RunKey
    tls: ssl.SSLContext | None = None
    binding: bytes = b""


def _tls_gate(key: RunKey, where: addresses.TlsAddress, certificate: RunCertificate | None) -> _Gate:
    if certificate is None:
        raise UsageError(
            f"other hosts can reach {where.place}, so whoever listens there needs the run's key and a certificate. "
            "Pass Listener(..., certificate=RunCertificate.new()), or listen on this host only: unix:/path or "
            "tcp:127.0.0.1:PORT."
        )
    from shoal.wire.tls import listening_context

    return _Gate(key, listening_context(certificate), certificate.pin.digest)


class _Stranger:
    """A connection that has proven nothing yet.

    It costs a socket and less than 3 KiB; OpenSSL's part, about 40 KiB, is made once it opens a TLS handshake.
    """

    __slots__ = ("_context", "_heard", "_sock", "_tls", "channel", "handshake", "silent", "until")

    def __init__(self, sock: socket.socket, gate: _Gate, until: float) -> None:
        self.channel: socket.socket | TlsChannel = sock
        self.handshake = Handshake(gate.key, connects=False, binding=gate.binding)
        self.until = until
        self.silent = True
        self._sock = sock
        self._context = gate.tls
        self._tls: TlsChannel | None = None
        self._heard = b""

    def progress(self) -> bool:
        """Read what is there; true once the key is proven. Raises when it is clear that it won't be."""
        if self._context is not None and not self._secured(self._context):
            return False
        while not self.handshake.done:
            try:
                more = self.channel.recv(self.handshake.wants - len(self._heard))
            except BlockingIOError:
                return False
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "hung up")
            self.silent = False
            self._heard += more
            if len(self._heard) == self.handshake.wants:
                answer = self.handshake.feed(self._heard)
                self._heard = b""
                if self.channel.send(answer, socket.MSG_NOSIGNAL) < len(answer):
                    raise BlockingIOError(errno.EAGAIN, "does not read its answer")
        return True

    def _secured(self, context: ssl.SSLContext) -> bool:
        """Go on with the TLS handshake; true once it is done."""
        if self._tls is None:
            try:
                opening = self._sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            if opening != _TLS_OPENING:
                raise BadFrame("it does not speak TLS")
            from shoal.wire.tls import TlsChannel

            self.silent = False
            self.channel = self._tls = TlsChannel(self._sock, context, connects=False)
        return self._tls.handshake()


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


def _bound(where: addresses.Address, sock: socket.socket, certificate: RunCertificate | None) -> addresses.Address:
    """Where it really listens: with its port, and with the pin of its certificate."""
    if isinstance(where, addresses.UnixAddress):
        return where
    host, port = sock.getsockname()[:2]
    if isinstance(where, addresses.TcpAddress):
        return addresses.TcpAddress(host, port)
    return addresses.TlsAddress(host, port, certificate.pin if certificate else None)
