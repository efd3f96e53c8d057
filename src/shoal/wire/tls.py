"""TLS 1.3 over a non-blocking socket, in the shape of a socket, so that a Connection need not know which it has.

OpenSSL gets two pieces of memory instead of the socket. So every system call is ours: it never blocks, never raises
a signal, and many records travel in one. `BlockingIOError` means what it means on a socket.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import ssl
from collections.abc import Sequence

from shoal.errors import BadFrame, Refused
from shoal.wire.certificates import Pin, RunCertificate

_RECORD_HEAD = 5  # bytes before each record; the last two of them are its length
_FIRST_READ = 2 << 10  # a busy channel's reads grow from here
_BATCH_BYTES = 256 << 10  # per system call: many records (they have 16 KiB at most), still in cache when they are read
_UNPROVEN_BYTES = 16 << 10  # more than twice what a TLS handshake and the proof of the key need
_NOTHING = memoryview(b"")
_NOSIGNAL = int(socket.MSG_NOSIGNAL)


def listening_context(certificate: RunCertificate) -> ssl.SSLContext:
    """For the side that listens and shows the run's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    # Nobody resumes: every connection shows the certificate, and nothing but what we send is ever in a stream.
    context.num_tickets = 0
    descriptor = certificate.open()
    try:
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


@functools.cache
def connecting_context() -> ssl.SSLContext:
    """For the side that connects. It asks no authority: `TlsChannel.check` compares with the pin."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _restrict(context)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION


class TlsChannel:
    """One side of a TLS connection. Owns the socket from its construction on."""

    __slots__ = ("_head", "_incoming", "_landing", "_outgoing", "_record", "_sock", "_tls", "_unproven", "_unsent")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, connects: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not connects)
        self._landing = _NOTHING
        self._unproven: int | None = _UNPROVEN_BYTES  # what the other side may still send before it proves the key
        self._head, self._record = b"", 0  # how far the record is read that is read now
        self._unsent = _NOTHING  # records that the kernel has not taken yet

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Close without a goodbye: frames know their lengths, so a connection that is cut off is no surprise."""
        self._sock.close()

    # Before anything is said.

    def handshake(self) -> bool:
        """Go as far as what has arrived goes; true once both sides have agreed on keys.

        Raises BadFrame for what is not TLS 1.3, an OSError if the other side is gone.
        """
        done = False
        try:
            while not done:
                try:
                    self._tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    self._pull()
        except BlockingIOError:
            pass
        except ssl.SSLEOFError as error:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error
        except ssl.SSLError as error:
            raise BadFrame(f"the other side does not speak TLS 1.3: {error.strerror or error}") from error
        if not self.flush():  # it is less than a new socket holds
            raise BlockingIOError(errno.EAGAIN, "does not read the TLS handshake")
        return done

    def shown(self) -> Pin:
        """Of the certificate that the other side has shown, once the handshake is done."""
        certificate = self._tls.getpeercert(binary_form=True)
        if not certificate:
            raise Refused("certificate", "the process that listens there shows no certificate")
        return Pin.of(certificate)

    def check(self, pin: Pin) -> None:
        """Refused unless the other side has shown this certificate (and, by the handshake, has its private key)."""
        shown = self._tls.getpeercert(binary_form=True)
        if not shown or not pin.matches(Pin.of(shown)):
            raise Refused(
                "certificate",
                "the process that listens there shows another certificate than this run's: the ticket or the address "
                "is of another run, or somebody sits in between. Take both from the host that started this run.",
            )

    def trust(self) -> None:
        """The other side has proven the key: it may send as much as it likes."""
        self._unproven = None
        self._landing = memoryview(bytearray(_FIRST_READ))

    # Sending.

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        return self.sendmsg((data,))

    def sendmsg(
        self, views: Sequence[bytes | memoryview], rights: Sequence[tuple[int, int, bytes]] = (), flags: int = 0
    ) -> int:
        """Take some of these bytes; what the kernel does not take of them now stays here, see `flush`."""
        if rights:
            raise ValueError("descriptors do not travel over TLS")
        if not self.flush():
            raise BlockingIOError(errno.EAGAIN, "the last records are not sent yet")
        taken = 0
        for view in views:
            taken += self._tls.write(view[: _BATCH_BYTES - taken])
            if taken == _BATCH_BYTES:
                break
        self._unsent = memoryview(self._outgoing.read())
        self.flush()
        return taken

    @property
    def unsent(self) -> bool:
        """Whether bytes that were taken have not been handed to the kernel yet."""
        return bool(self._unsent) or self._outgoing.pending > 0

    def flush(self) -> bool:
        """Send what the kernel takes now; true when nothing is left."""
        if not self._unsent:
            if not self._outgoing.pending:
                return True
            self._unsent = memoryview(self._outgoing.read())
        try:
            sent = self._sock.send(self._unsent, _NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = _NOTHING  # nobody will ever read it
            raise
        done = sent == self._unsent.nbytes
        self._unsent = _NOTHING if done else self._unsent[sent:]
        return done

    # Receiving.

    @property
    def buffered(self) -> bool:
        """Whether bytes have been taken off the socket that nobody has read: a poll does not see them."""
        return self._tls.pending() > 0 or self._incoming.pending > 0

    def recv(self, limit: int) -> bytes:
        data = bytearray(limit)
        return bytes(data[: self.recv_into(memoryview(data))])

    def recv_into(self, view: memoryview, limit: int = 0) -> int:
        """Like a socket's; at most one record (16 KiB) per call. 0 once the other side is gone."""
        limit = limit or view.nbytes
        if not self.buffered:
            self._pull()  # what OpenSSL would ask for with an exception
        while True:
            try:
                return self._tls.read(limit, view)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                self._pull()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def _pull(self) -> None:
        """Take what has arrived off the socket; BlockingIOError if nothing has."""
        if self._unproven is not None:
            self._pull_record(self._unproven)
            return
        count = self._sock.recv_into(self._landing)
        if not count:
            self._incoming.write_eof()
            return
        self._incoming.write(self._landing[:count])
        if count == self._landing.nbytes < _BATCH_BYTES:
            self._landing = memoryview(bytearray(2 * count))

    def _pull_record(self, allowance: int) -> None:
        """Take bytes of one record off the socket, and none of the next.

        So a stranger costs little, and a proven connection starts with all that follows still in the kernel, where
        a poll sees it.
        """
        data = self._sock.recv(min(self._record or _RECORD_HEAD - len(self._head), _FIRST_READ))
        if not data:
            self._incoming.write_eof()
            return
        self._incoming.write(data)
        self._unproven = allowance - len(data)
        if self._record:
            self._record -= len(data)
        else:
            self._head += data
            if len(self._head) == _RECORD_HEAD:
                self._head, self._record = b"", int.from_bytes(self._head[-2:], "big")
        if self._record > self._unproven:
            raise BadFrame("the other side says too much before it has proven anything")
