"""One proven connection: typed messages with raw buffers beside them, received into place.

Every socket is non-blocking. `post`, `flush` and `try_receive` never wait; `send` and `receive` wait with a
deadline. A connection belongs to one thread at a time.

Below a connection is a channel: the socket itself, or TLS over it, which takes and gives bytes like a socket. Only two
things differ, and both are asked for by name: TLS may hold bytes that were taken but not sent (`unsent`), and bytes
that have arrived but that a poll does not see (`buffered`).
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from shoal.clock import Deadline
from shoal.errors import BadFrame, PeerClosed, PeerTimeout, Refused, UsageError, WireError
from shoal.wire import addresses, frames
from shoal.wire.certificates import Pin
from shoal.wire.keys import Handshake, RunKey
from shoal.wire.messages import Message, MessageCodec
from shoal.wire.waits import READABLE, WRITABLE, wait
from shoal.wire.wakeup import Wakeup

if TYPE_CHECKING:
    from shoal.wire.tls import TlsChannel  # brings OpenSSL, which a run on one host does without

Place = Callable[[Message], Sequence[memoryview]]

_INBOX_BYTES = 16 << 10  # headers are small; buffers go straight to their place
_CHUNK_BYTES = 1 << 20  # per system call, so that what one side writes is still in cache when the other reads it
_VIEWS_PER_CALL = 64
_PATIENCE = 20.0  # seconds that a peer has to take a message when the caller does not say
# Plain numbers: the enumerations of the socket module cost a microsecond per use.
_NOSIGNAL, _CLOEXEC, _TRUNCATED = int(socket.MSG_NOSIGNAL), int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
_ANCILLARY_BYTES = socket.CMSG_SPACE(frames.MAX_DESCRIPTORS * array.array("i").itemsize)


class Connection:
    """A stream of frames to one peer, whose name appears in every error."""

    def __init__(self, channel: socket.socket | TlsChannel, codec: MessageCodec, peer: str) -> None:
        self._tls: TlsChannel | None = None
        self._unix: socket.socket | None = None  # what descriptors can travel over
        if not isinstance(channel, socket.socket):
            channel.trust()
            self._tls = channel
        else:
            channel.setblocking(False)
            if channel.family == socket.AF_UNIX:
                self._unix = channel
            else:
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.bytes_sent = 0  # counted for what noise can't touch: bytes on the wire (inside TLS, where there is TLS)
        self.bytes_received = 0
        self._sock = channel
        self._codec = codec
        self._outbox: deque[memoryview] = deque()
        self._inbox = bytearray(_INBOX_BYTES)
        self._start = self._end = 0  # the bytes of the inbox that are not taken yet
        self._bulk: _Bulk | None = None  # a frame whose buffers are still arriving
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        return self._sock.fileno()

    def give_up_after(self, seconds: float) -> None:
        """Count a peer on another host as gone when what was sent to it is not received for so long.

        For peers that always read. Without it a cut cable is noticed after a quarter of an hour.
        """
        with socket.socket(fileno=os.dup(self.fileno())) as twin:
            if twin.family != socket.AF_UNIX:
                twin.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))

    @property
    def carries_fds(self) -> bool:
        """Whether the peer is a process of this host, which can be given descriptors."""
        return self._unix is not None

    def local_host(self) -> str:
        """The address of this host that leads to the peer; loopback for a unix socket."""
        with socket.socket(fileno=os.dup(self.fileno())) as twin:
            name = twin.getsockname()
        return name[0] if isinstance(name, tuple) else "127.0.0.1"

    # Sending.

    def post(self, message: Message, buffers: Sequence[memoryview] = ()) -> None:
        """Hand a frame to the kernel as far as it goes now; `flush` sends the rest.

        The buffers are not copied: they must stay as they are until `pending` is false.
        """
        sizes = [buffer.nbytes for buffer in buffers]
        head = frames.head(self._codec.encode(message), sizes)
        if not self._outbox and not sizes:
            sent = self._send_some([head])
            if sent == len(head):
                return
            self._outbox.append(memoryview(head)[sent:])
            return
        self._outbox.append(memoryview(head))
        self._outbox.extend(buffer.cast("B") for buffer in buffers if buffer.nbytes)
        self.flush()

    @property
    def pending(self) -> bool:
        """Whether something posted has not been handed to the kernel yet."""
        return bool(self._outbox) or (self._tls is not None and self._tls.unsent)

    def flush(self) -> bool:
        """Send what the kernel takes now; true when nothing is left."""
        while self._outbox:
            sent = self._send_some(_prefix_of(self._outbox))
            if not sent:
                return False
            while sent:
                first = self._outbox[0]
                if sent < first.nbytes:
                    self._outbox[0] = first[sent:]
                    break
                sent -= first.nbytes
                self._outbox.popleft()
        return self._tls is None or self._flush_records(self._tls)

    def send(self, message: Message, buffers: Sequence[memoryview] = (), deadline: Deadline | None = None) -> None:
        """Send a whole frame. Without a deadline the peer has 20 s to take it."""
        self.post(message, buffers)
        self._flush_until(deadline)

    def send_fds(self, message: Message, fds: Sequence[int], deadline: Deadline | None = None) -> None:
        """Send a frame with descriptors beside it; the peer gets its own copies. Unix sockets only."""
        if self._unix is None:
            raise WireError(f"descriptors travel over unix sockets only, not to {self.peer}")
        self._flush_until(deadline)
        head = frames.head(self._codec.encode(message), descriptors=len(fds))
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())
        sent = self._send_some([head], [rights] if fds else [])
        while not sent:  # descriptors go with the first byte, so that byte has to wait for room
            self._await(WRITABLE, deadline or Deadline.after(_PATIENCE), "take a message")
            sent = self._send_some([head], [rights] if fds else [])
        if sent < len(head):
            self._outbox.append(memoryview(head)[sent:])
            self._flush_until(deadline)

    def _flush_until(self, deadline: Deadline | None) -> None:
        if (self._outbox or self._tls is not None) and not self.flush():
            deadline = deadline or Deadline.after(_PATIENCE)
            while not self.flush():
                self._await(WRITABLE, deadline, "take a message")

    def _flush_records(self, tls: TlsChannel) -> bool:
        try:
            return tls.flush()
        except OSError as error:
            raise self._closed(error) from error

    def _send_some(self, views: Sequence[bytes | memoryview], rights: Sequence[tuple[int, int, bytes]] = ()) -> int:
        try:
            if len(views) == 1 and not rights:
                sent = self._sock.send(views[0], _NOSIGNAL)
            else:
                sent = self._sock.sendmsg(views, rights, _NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._outbox.clear()  # nobody will ever read it
            raise self._closed(error) from error
        self.bytes_sent += sent
        return sent

    # Receiving.

    @property
    def buffered(self) -> bool:
        """Whether bytes of a next frame are already here, where a poll would not see them."""
        return self._start < self._end or (self._tls is not None and self._tls.buffered)

    @property
    def is_arriving(self) -> bool:
        """Whether a frame's buffers are on their way: its beginning is here."""
        return self._bulk is not None

    def try_receive(self, place: Place | None = None) -> Message | None:
        """The next whole frame, or None if it has not arrived yet (what has arrived is kept).

        `place(message)` names the memory that the frame's buffers go to; their sizes must match what the
        frame announces, else BadFrame. It is called once per frame, as soon as the header is here.
        """
        return self._next_frame(place, fds=None)

    def try_receive_fds(self, place: Place | None = None) -> tuple[Message, list[int]] | None:
        """The same, with the descriptors that came with it; the caller closes them."""
        fds: list[int] = []
        message = self._next_frame(place, fds)
        return None if message is None else (message, fds)

    def receive(self, deadline: Deadline, place: Place | None = None, wake: Wakeup | None = None) -> Message:
        """The next frame. PeerTimeout after the deadline, PeerClosed if the peer goes, the wakeup's reason."""
        while (message := self.try_receive(place)) is None:
            self._await(READABLE, deadline, "send a message", wake)
        return message

    def receive_fds(self, deadline: Deadline, wake: Wakeup | None = None) -> tuple[Message, list[int]]:
        """The next frame and the descriptors that came with it; the caller closes them."""
        fds: list[int] = []
        while (message := self._next_frame(None, fds)) is None:
            self._await(READABLE, deadline, "send a message", wake)
        return message, fds

    def _next_frame(self, place: Place | None, fds: list[int] | None) -> Message | None:
        while True:
            if self._bulk is not None:
                if not self._fill_bulk(self._bulk):
                    return None
                message, self._bulk = self._bulk.message, None
                return message
            waiting = self._end - self._start
            wanted = frames.PREFIX_BYTES
            if waiting >= wanted:
                prefix = frames.read_prefix(self._inbox, self._start)
                wanted = prefix.length
                if waiting >= wanted:
                    first = self._take_head(prefix, place, fds)
                    if first is not None:
                        return first
                    continue
            if not self._fill_inbox(wanted):
                return None

    def _take_head(self, prefix: frames.Prefix, place: Place | None, fds: list[int] | None) -> Message | None:
        """Take a frame's head off the inbox: its message if nothing follows, else None with `_bulk` set."""
        begin = self._start + frames.PREFIX_BYTES
        try:
            message = self._codec.decode(memoryview(self._inbox)[begin : begin + prefix.header])
        except BadFrame as error:
            raise BadFrame(f"from {self.peer}: {error}") from error
        sizes = frames.read_sizes(self._inbox, self._start, prefix) if prefix.buffers else ()
        self._start += prefix.length
        if prefix.descriptors:
            self._hand_over(prefix.descriptors, message, fds)
        if not sizes:
            return message
        views = [view.cast("B") for view in (place(message) if place else ())]
        if tuple(view.nbytes for view in views) != sizes:
            raise BadFrame(
                f"{type(message).__name__} from {self.peer} brings buffers of {_sizes(sizes)}; expected "
                f"{_sizes([view.nbytes for view in views])}"
            )
        self._bulk = _Bulk(message, deque(view for view in views if view.nbytes))
        return None

    def _hand_over(self, count: int, message: Message, fds: list[int] | None) -> None:
        if fds is None or len(self._fds) < count:
            raise BadFrame(
                f"{type(message).__name__} from {self.peer} announces {count} descriptors; "
                f"{len(self._fds)} came and {'some' if fds is not None else 'none'} were expected"
            )
        fds.extend(self._fds.popleft() for _ in range(count))

    def _fill_inbox(self, wanted: int) -> bool:
        """Read what has arrived behind what is there already; False if nothing has."""
        if self._start:
            self._inbox[: self._end - self._start] = self._inbox[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        if wanted > len(self._inbox):
            self._inbox.extend(bytes(wanted - len(self._inbox)))
        room = memoryview(self._inbox)[self._end :]
        try:
            if self._unix is not None:
                # A plain read would drop descriptors that a later frame brings along.
                count, ancillary, flags, _ = self._unix.recvmsg_into([room], _ANCILLARY_BYTES, _CLOEXEC)
                if ancillary or flags & _TRUNCATED:
                    self._keep_fds(ancillary, flags)
            else:
                count = self._sock.recv_into(room)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._closed(error) from error
        if not count:
            raise self._closed(None)
        self._end += count
        self.bytes_received += count
        return True

    def _keep_fds(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if flags & _TRUNCATED or len(self._fds) > frames.MAX_DESCRIPTORS:
            raise BadFrame(f"{self.peer} sent more descriptors than a frame may carry ({frames.MAX_DESCRIPTORS})")

    def _fill_bulk(self, bulk: _Bulk) -> bool:
        """Receive into place; True when the frame's last buffer is full."""
        views = bulk.views
        while views:
            view = views[0]
            if self._start < self._end:  # the first bytes came along with the header
                count = min(view.nbytes, self._end - self._start)
                view[:count] = memoryview(self._inbox)[self._start : self._start + count]
                self._start += count
            else:
                try:
                    count = self._sock.recv_into(view, min(view.nbytes, _CHUNK_BYTES))
                except BlockingIOError:
                    return False
                except OSError as error:
                    raise self._closed(error) from error
                if not count:
                    raise self._closed(None)
                self.bytes_received += count
            if count < view.nbytes:
                views[0] = view[count:]
            else:
                views.popleft()
        return True

    # Ends.

    def close(self) -> None:
        """Close, and close what descriptors came unasked. Calling it again does nothing."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.popleft())
        self._outbox.clear()

    def _await(self, events: int, deadline: Deadline, what: str, wake: Wakeup | None = None) -> None:
        begun = deadline.clock.now()
        if not wait(self.fileno(), events, deadline, wake):
            waited = deadline.clock.now() - begun
            raise PeerTimeout((self.peer,), f"{self.peer} did not {what} within {waited:.1f} s")

    def _closed(self, error: OSError | None) -> PeerClosed:
        why = f" ({error.strerror or error})" if error else ""
        return PeerClosed(self.peer, f"the connection to {self.peer} closed{why}")


class _Bulk:
    """A frame whose head is here and whose buffers are arriving."""

    __slots__ = ("message", "views")

    def __init__(self, message: Message, views: deque[memoryview]) -> None:
        self.message = message
        self.views = views


def connect(
    address: str,
    key: RunKey,
    codec: MessageCodec,
    deadline: Deadline,
    wake: Wakeup | None = None,
    pin: Pin | None = None,
) -> Connection:
    """Connect and prove the run's key both ways.

    PeerClosed if nobody listens there or the listener hangs up, Refused if it does not hold the key, shows another
    certificate or speaks another version, PeerTimeout after the deadline. Between hosts (`tls:`) the certificate's
    pin comes with the address or as `pin`; it is checked before anything is said.
    """
    where = addresses.parse(address)
    name = address
    if isinstance(where, addresses.TlsAddress):
        pin, name = _expected_pin(where, pin), where.place
    sock = socket.socket(where.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        _dial(sock, where, name, deadline, wake)
        if isinstance(where, addresses.TlsAddress) and pin is not None:
            channel: socket.socket | TlsChannel = _secure(sock, pin, name, deadline, wake)
            handshake = Handshake(key, connects=True, binding=pin.digest)
        else:
            channel = sock
            handshake = Handshake(key, connects=True)
        channel.send(handshake.first(), _NOSIGNAL)
        while not handshake.done:
            answer = handshake.feed(_read_exactly(channel, handshake.wants, name, deadline, wake))
            if answer:
                channel.send(answer, _NOSIGNAL)
        return Connection(channel, codec, name)
    except OSError as error:
        sock.close()
        raise PeerClosed(name, f"no connection to {name}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise


def learn_pin(address: str, key: RunKey, deadline: Deadline) -> Pin:
    """Of the certificate that is shown at a `tls:` address by somebody who holds the key. Raises as `connect` does.

    The proofs cover the certificate that each side sees. Whoever sits in between with another one can't pass them on.
    """
    where = addresses.parse(address)
    assert isinstance(where, addresses.TlsAddress)
    name = where.place
    sock = socket.socket(where.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with closing(sock):
        try:
            _dial(sock, where, name, deadline, None)
            channel = _secure(sock, None, name, deadline, None)
            pin = channel.shown()
            handshake = Handshake(key, connects=True, binding=pin.digest)
            channel.send(handshake.first(), _NOSIGNAL)
            while not handshake.done:
                answer = handshake.feed(_read_exactly(channel, handshake.wants, name, deadline, None))
                if answer:
                    channel.send(answer, _NOSIGNAL)
        except OSError as error:
            raise PeerClosed(name, f"no connection to {name}: {error.strerror or error}") from error
    return pin


def _expected_pin(where: addresses.TlsAddress, pin: Pin | None) -> Pin:
    """The pin that decides, of those that the caller and the address name."""
    expected = pin or where.pin
    if expected is None:
        raise UsageError(
            f"{where} is on another host and nobody said which certificate to expect there. Use the run's ticket, or "
            "the whole address that its listener gives, with the part after #."
        )
    if where.pin is not None and not where.pin.matches(expected):
        raise UsageError(
            f"the ticket and the address {where.place} are of two runs: they name different certificates. "
            "Take both from the host that started this run."
        )
    if where.everywhere:
        raise UsageError(
            f"{where.place} means every address of a host: there one listens. Name the host's own address."
        )
    return expected


def _secure(sock: socket.socket, pin: Pin | None, name: str, deadline: Deadline, wake: Wakeup | None) -> TlsChannel:
    """TLS over this socket, with whoever holds the certificate that has this pin; None: with anybody."""
    from shoal.wire.tls import TlsChannel, connecting_context

    channel = TlsChannel(sock, connecting_context(), connects=True)
    try:
        while not channel.handshake():
            # Asked each time: somebody who keeps talking must not keep us here.
            if deadline.passed() or not wait(sock.fileno(), READABLE, deadline, wake):
                raise PeerTimeout((name,), f"{name} did not finish the TLS handshake before the deadline")
        if pin is not None:
            channel.check(pin)
    except OSError as error:
        text = f"{name} hung up during the TLS handshake ({error.strerror or error}): is it this run's listener?"
        raise PeerClosed(name, text) from error
    except BadFrame as error:
        raise BadFrame(f"{name}: {error}") from error
    except Refused as error:
        raise Refused(error.reason, f"{name}: {error.text}") from error
    return channel


def _dial(sock: socket.socket, where: addresses.Address, name: str, deadline: Deadline, wake: Wakeup | None) -> None:
    while (code := sock.connect_ex(where.target)) != 0:
        if code == errno.EAGAIN:  # a unix listener's queue is full; nothing tells when it no longer is
            pause = Deadline(min(deadline.at, deadline.clock.now() + 0.01), deadline.clock)
            wait(sock.fileno(), 0, pause, wake)
        elif code == errno.EINPROGRESS:
            if wait(sock.fileno(), WRITABLE, deadline, wake):
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))
                return
        else:
            raise OSError(code, os.strerror(code))
        if deadline.passed():
            raise PeerTimeout((name,), f"nobody took the connection to {name} before the deadline")


def _read_exactly(
    channel: socket.socket | TlsChannel, count: int, name: str, deadline: Deadline, wake: Wakeup | None
) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = channel.recv(count - len(data))
        except BlockingIOError:
            if deadline.passed() or not wait(channel.fileno(), READABLE, deadline, wake):
                raise PeerTimeout((name,), f"{name} did not finish the handshake before the deadline") from None
            continue
        if not more:
            raise PeerClosed(name, f"{name} hung up during the handshake: it did not accept this run's key")
        data += more
    return data


def _prefix_of(outbox: deque[memoryview]) -> list[memoryview]:
    """The first views of the outbox, about one chunk of them."""
    views: list[memoryview] = []
    room = _CHUNK_BYTES
    for view in outbox:
        views.append(view[:room])
        room -= views[-1].nbytes
        if not room or len(views) == _VIEWS_PER_CALL:
            break
    return views


def _sizes(sizes: Sequence[int]) -> str:
    return "+".join(f"{size:,}" for size in sizes) + " bytes" if sizes else "none"
