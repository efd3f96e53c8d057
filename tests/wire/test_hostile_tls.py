"""Whoever comes to a `tls:` listener without the run's key gets nothing and does no harm."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.clock import Deadline, ManualClock
from shoal.errors import BadFrame, PeerClosed, PeerTimeout, Refused, RunEnded, UsageError, WireError
from shoal.wire import Connection, Handshake, Listener, RunCertificate, RunKey, Wakeup, connect
from shoal.wire.addresses import TlsAddress, parse
from shoal.wire.certificates import Pin
from shoal.wire.connection import learn_pin
from shoal.wire.listener import _MAX_STRANGERS
from shoal.wire.tls import TlsChannel, connecting_context, listening_context

from .scene import CERTIFICATE, CODEC, Word, dial, listening, pair, soon

OTHER = RunCertificate.new()


class Door:
    """A listener at work in a thread of its own, as a coordinator would be."""

    def __init__(self, certificate: RunCertificate = CERTIFICATE) -> None:
        self.key = RunKey.new()
        self.listener = Listener("tls:127.0.0.1:0", self.key, certificate=certificate)
        self.address = self.listener.address
        self.admitted: queue.Queue[Connection] = queue.Queue()
        self._wake = Wakeup()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(RunEnded):
            while True:
                self.admitted.put(self.listener.accept(CODEC, Deadline.after(60), self._wake))

    def lets_members_in(self) -> bool:
        """Whether an honest member, and nobody else, gets in now."""
        ours = connect(self.address, self.key, CODEC, soon())
        theirs = self.admitted.get(timeout=10)
        try:
            ours.send(Word(7))
            return theirs.receive(soon()) == Word(7) and self.admitted.empty()
        finally:
            ours.close()
            theirs.close()

    def close(self) -> None:
        self._wake.set(RunEnded("the test is over"))
        self._thread.join()
        self.listener.close()
        self._wake.close()
        while not self.admitted.empty():
            self.admitted.get().close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.close()


def stranger_tls(address: str, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    """A TLS connection as anybody can make it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    sock = dial(address)
    try:
        return context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise


def said(sock: socket.socket) -> bytes:
    """All that a listener says before it hangs up."""
    data = b""
    try:
        while more := sock.recv(1000):
            data += more
    except (ConnectionResetError, ssl.SSLEOFError):
        pass
    return data


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = connecting_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


# Who may listen, and whom one connects to.


def test_nobody_listens_beyond_loopback_without_a_certificate() -> None:
    for address in ("tls:0.0.0.0:0", "tcp:0.0.0.0:0", "tls:127.0.0.1:0", "tls:[::]:0"):
        with pytest.raises(UsageError, match=r"needs the run's key and a certificate\. Pass Listener"):
            Listener(address, RunKey.new())


def test_nobody_connects_without_a_pin() -> None:
    with pytest.raises(UsageError, match="nobody said which certificate to expect"):
        connect("tls:10.0.0.1:80", RunKey.new(), CODEC, soon())
    with pytest.raises(UsageError, match="different certificates"):
        connect(f"tls:10.0.0.1:80#{OTHER.pin}", RunKey.new(), CODEC, soon(), pin=CERTIFICATE.pin)
    with pytest.raises(UsageError, match="every address of a host"):
        connect("tls:0.0.0.0:80", RunKey.new(), CODEC, soon(), pin=CERTIFICATE.pin)


@pytest.mark.parametrize(("bind", "host"), [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")])
def test_a_listener_on_all_addresses_is_reached_with_the_pin_of_a_ticket(bind: str, host: str) -> None:
    if ":" in bind and not _has_ipv6():
        pytest.skip("this host has no IPv6")
    key = RunKey.new()
    listener = Listener(f"tcp:{bind}:0", key, certificate=CERTIFICATE)
    where = parse(listener.address)
    assert isinstance(where, TlsAddress)
    assert where.pin == CERTIFICATE.pin
    ends: list[Connection] = []
    pin = CERTIFICATE.pin
    thread = threading.Thread(
        target=lambda: ends.append(connect(f"tls:{host}:{where.port}", key, CODEC, soon(), pin=pin))
    )
    thread.start()
    ends.append(listener.accept(CODEC, soon()))
    thread.join()
    ends[0].send(Word(1))
    assert ends[1].receive(soon()) == Word(1)
    assert str(pin) not in ends[0].peer + ends[1].peer  # a name to read in errors
    for end in ends:
        end.close()
    listener.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# Strangers that connect.


def test_a_wrong_key_is_found_out(door: Door) -> None:
    with pytest.raises(Refused, match="does not hold this run's key"):
        connect(door.address, RunKey.new(), CODEC, soon())
    assert door.lets_members_in()


def test_tls_alone_opens_nothing(door: Door) -> None:
    """Without the key: a guess is answered by hanging up, silence by silence."""
    with stranger_tls(door.address) as guessing, stranger_tls(door.address) as shy:
        guessing.send(os.urandom(40))
        assert said(guessing) == b""
        shy.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            shy.recv(1)
        assert door.lets_members_in()


def test_a_wrong_proof_is_answered_by_hanging_up(door: Door) -> None:
    with stranger_tls(door.address) as stranger:
        stranger.send(Handshake(RunKey.new(), connects=True).first())
        stranger.send(os.urandom(32))
        assert len(said(stranger)) == 72  # a greeting and a proof for this nonce, no welcome
    assert door.lets_members_in()


def test_a_proof_without_the_certificate_in_it_is_wrong(door: Door) -> None:
    """The key alone, used over TLS with whatever certificate, is not enough: the proof names the certificate."""
    for binding in (b"", OTHER.pin.digest):
        with stranger_tls(door.address) as stranger:
            ours = Handshake(door.key, connects=True, binding=binding)
            stranger.send(ours.first())
            with pytest.raises(Refused, match="does not hold this run's key"):
                ours.feed(stranger.recv(72))
    assert door.lets_members_in()


GARBAGE = {
    "noise": os.urandom(5000),
    "like a record": b"\x16" + os.urandom(5000),
    "a record of noise": b"\x16\x03\x01\x02\x00" + os.urandom(5000),
    "http": b"GET / HTTP/1.1\r\nHost: shoal\r\n\r\n",
    "a hello cut short": client_hello()[:-1] + b"\xff" * 600,
    "plain greeting": Handshake(RunKey.new(), connects=True).first(),
    "zeros": bytes(5000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_answered_by_hanging_up(garbage: bytes, door: Door) -> None:
    with dial(door.address) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
        said(stranger)
    assert door.lets_members_in()


def test_the_right_key_without_tls_gets_no_answer(door: Door) -> None:
    """A plain member at an encrypted door: not even a greeting comes back in the clear."""
    with dial(door.address) as plain:
        plain.send(Handshake(door.key, connects=True).first())
        assert said(plain) == b""
    assert door.lets_members_in()


def test_an_older_tls_is_refused(door: Door) -> None:
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        stranger_tls(door.address, newest=ssl.TLSVersion.TLSv1_2).close()
    assert door.lets_members_in()


# Who has listened to others.


@contextlib.contextmanager
def in_between(door: Door, carry: Callable[[socket.socket, socket.socket], None]) -> Iterator[int]:
    """Somebody who takes one connection and opens one to the door; yields the port to fall for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def work() -> None:
            near, _ = server.accept()
            near.settimeout(10)
            with near, dial(door.address) as far, contextlib.suppress(OSError):
                carry(near, far)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(20)


def test_a_recorded_conversation_opens_nothing(door: Door) -> None:
    """All bytes of an honest join, said again: the listener's part is fresh each time, so they fit nothing."""
    record: list[bytes] = []

    def carry(near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=pump, args=(far, near))
        back.start()
        pump(near, far, record)
        back.join()

    with in_between(door, carry) as port:
        ours = connect(f"tls:127.0.0.1:{port}", door.key, CODEC, soon(), pin=CERTIFICATE.pin)
        theirs = door.admitted.get(timeout=10)
        ours.send(Word(1))
        assert theirs.receive(soon()) == Word(1)  # who only carries bytes has changed nothing
        ours.close()
        theirs.close()
    assert sum(map(len, record)) > 300
    with dial(door.address) as replay:
        with contextlib.suppress(OSError):
            for piece in record:
                replay.sendall(piece)
        said(replay)
    assert door.lets_members_in()


def pump(source: socket.socket, sink: socket.socket, record: list[bytes] | None = None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if record is not None:
                record.append(data)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def test_the_words_of_a_handshake_are_good_once(door: Door) -> None:
    ours = Handshake(door.key, connects=True, binding=CERTIFICATE.pin.digest)
    words = [ours.first()]
    with stranger_tls(door.address) as honest:
        honest.send(words[0])
        words.append(ours.feed(honest.recv(72)))
        honest.send(words[1])
        assert honest.recv(100) == b"welcome\x00"
        door.admitted.get(timeout=10).close()
    with stranger_tls(door.address) as replay:
        for word in words:
            replay.send(word)
        assert len(said(replay)) == 72
    assert door.lets_members_in()


def test_somebody_in_between_is_found_out_by_the_certificate(door: Door) -> None:
    heard: list[bytes] = []

    def carry(near: socket.socket, far: socket.socket) -> None:
        with listening_context(OTHER).wrap_socket(near, server_side=True) as tls:
            heard.append(said(tls))

    with in_between(door, carry) as port, pytest.raises(Refused, match="another certificate than this run's"):
        connect(f"tls:127.0.0.1:{port}", door.key, CODEC, soon(), pin=CERTIFICATE.pin)
    assert heard == [b""]  # not even a greeting was said to it
    assert door.lets_members_in()


def test_proofs_that_are_relayed_to_another_certificate_are_worth_nothing(door: Door) -> None:
    """A member was tricked into the wrong pin. The relay takes its words to the real listener, and back."""
    words: list[bytes] = []

    def carry(near: socket.socket, far: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with listening_context(OTHER).wrap_socket(near, server_side=True) as victim, context.wrap_socket(far) as target:
            words.append(victim.recv(100))
            target.send(words[0])
            words.append(target.recv(100))
            victim.send(words[1])
            words.append(said(victim))

    with in_between(door, carry) as port, pytest.raises(Refused, match="does not hold this run's key"):
        connect(f"tls:127.0.0.1:{port}", door.key, CODEC, soon(), pin=OTHER.pin)
    assert [len(word) for word in words] == [40, 72, 0]
    assert door.lets_members_in()


def test_a_byte_changed_on_the_way_ends_the_connection(door: Door) -> None:
    changed = threading.Event()

    def carry(near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=pump, args=(far, near))
        back.start()
        while data := near.recv(65536):
            if changed.is_set():
                data = data[:-1] + bytes([data[-1] ^ 1])
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        back.join()

    with in_between(door, carry) as port:
        ours = connect(f"tls:127.0.0.1:{port}", door.key, CODEC, soon(), pin=CERTIFICATE.pin)
        theirs = door.admitted.get(timeout=10)
        changed.set()
        ours.send(Word(1))
        with pytest.raises(PeerClosed):
            theirs.receive(soon())
        ours.close()
        theirs.close()
    assert door.lets_members_in()


# Listeners that are not what they seem.


def test_a_listener_with_the_key_but_another_certificate_is_refused() -> None:
    impostor = Door(OTHER)
    where = parse(impostor.address)
    assert isinstance(where, TlsAddress)
    with pytest.raises(Refused, match=r"tls:127.0.0.1:\d+: .* another certificate") as caught:
        connect(where.place, impostor.key, CODEC, soon(), pin=CERTIFICATE.pin)
    assert caught.value.reason == "certificate"
    impostor.close()


def test_a_listener_without_tls_is_not_spoken_to(tmp_path: Path) -> None:
    with listening("tcp", tmp_path) as (listener, key):
        address = listener.address.replace("tcp:", "tls:")
        thread = threading.Thread(target=lambda: listener_hears_nobody(listener))
        thread.start()
        with pytest.raises((PeerClosed, BadFrame), match="TLS"):
            connect(address, key, CODEC, soon(), pin=CERTIFICATE.pin)
        thread.join()


def listener_hears_nobody(listener: Listener) -> None:
    with pytest.raises(PeerTimeout):
        listener.accept(CODEC, Deadline.after(0.3))


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", os.urandom(100)], ids=["eof", "http", "noise"]
)
def test_a_listener_that_babbles_is_named(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play() -> None:
            client, _ = server.accept()
            with client:
                client.recv(10_000)
                client.send(answer)

        thread = threading.Thread(target=play)
        thread.start()
        address = f"tls:127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WireError, match=address):
            connect(address, RunKey.new(), CODEC, soon(), pin=CERTIFICATE.pin)
        thread.join()


def test_a_listener_that_says_nothing_is_named_when_the_deadline_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tls:127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PeerTimeout, match="did not finish the TLS handshake") as caught:
            connect(address, RunKey.new(), CODEC, Deadline.after(0.05), pin=CERTIFICATE.pin)
        assert caught.value.missing == (address,)


# Crowds and dawdlers. These drive the listener by hand, so that time stands still.


@contextlib.contextmanager
def by_hand() -> Iterator[tuple[Listener, RunKey, ManualClock]]:
    clock, key = ManualClock(), RunKey.new()
    listener = Listener("tls:127.0.0.1:0", key, clock, CERTIFICATE)
    try:
        yield listener, key, clock
    finally:
        listener.close()


class Slow:
    """An honest member that joins step by step."""

    def __init__(self, listener: Listener, key: RunKey) -> None:
        self.channel = TlsChannel(dial(listener.address), connecting_context(), connects=True)
        self.channel.handshake()
        self._words = Handshake(key, connects=True, binding=CERTIFICATE.pin.digest)

    def join(self, listener: Listener) -> Connection:
        """Go on to the end; returns the listener's side."""
        while not self.channel.handshake():
            assert listener.poll_accept(CODEC) == []
        self.channel.send(self._words.first())
        answer = b""
        while len(answer) < 72:
            assert listener.poll_accept(CODEC) == []
            with contextlib.suppress(BlockingIOError):
                answer += self.channel.recv(72 - len(answer))
        self.channel.send(self._words.feed(answer))
        accepted: list[Connection] = []
        while not accepted:
            accepted = listener.poll_accept(CODEC)
        return accepted[0]


def gone(sock: socket.socket) -> bool:
    """Whether the listener has hung up by now; reads away what it said."""
    sock.setblocking(False)
    try:
        while sock.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_byte_per_second_is_too_slow() -> None:
    """The deadline counts from the connection, not from the last byte."""
    with by_hand() as (listener, key, clock), dial(listener.address) as loris:
        hello = client_hello()
        for byte in hello[:10]:
            assert not gone(loris)
            loris.send(bytes([byte]))
            assert listener.poll_accept(CODEC) == []
            clock.advance(1.0)
        assert listener.poll_accept(CODEC) == []
        assert gone(loris)
        ours = Slow(listener, key)
        ours.join(listener).close()
        ours.channel.close()


def test_a_hello_that_never_ends_is_cut_off() -> None:
    """OpenSSL would collect 128 KiB of it."""
    with by_hand() as (listener, key, _), dial(listener.address) as stranger:
        piece = b"\x01" + (120_000).to_bytes(3, "big") + bytes(1000)
        for _ in range(8):
            stranger.sendall(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
            piece = bytes(1000)
        assert listener.poll_accept(CODEC) == []
        assert not gone(stranger)
        for _ in range(9):
            stranger.sendall(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
        while not gone(stranger):
            assert listener.poll_accept(CODEC) == []
        ours = Slow(listener, key)
        ours.join(listener).close()
        ours.channel.close()


@pytest.mark.parametrize("stage", ["connected", "half a hello", "hello", "tls", "half a greeting", "greeting"])
def test_who_stops_half_way_is_hung_up_on(stage: str) -> None:
    with by_hand() as (listener, key, clock):
        sock = dial(listener.address)
        hello = client_hello()
        if stage in ("tls", "half a greeting", "greeting"):
            channel = TlsChannel(sock, connecting_context(), connects=True)
            while not channel.handshake():
                assert listener.poll_accept(CODEC) == []
            greeting = Handshake(key, connects=True).first()
            channel.send({"tls": b"", "half a greeting": greeting[:20], "greeting": greeting}[stage] or b"s")
        else:
            sock.send({"connected": b"", "half a hello": hello[:100], "hello": hello}[stage])
        assert listener.poll_accept(CODEC) == []
        assert not gone(sock)
        clock.advance(9.9)
        assert listener.poll_accept(CODEC) == []
        assert not gone(sock)
        clock.advance(0.2)
        assert listener.poll_accept(CODEC) == []
        assert gone(sock)
        sock.close()


def test_a_thousand_idle_connections_cost_a_bounded_number_of_descriptors_and_keep_nobody_out() -> None:
    _allow_descriptors(3000)
    with by_hand() as (listener, key, _), contextlib.ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        early = Slow(listener, key)  # in mid-handshake when the crowd comes
        stack.callback(early.channel.close)
        assert listener.poll_accept(CODEC) == []
        crowd = []
        for _ in range(1000):
            crowd.append(stack.enter_context(dial(listener.address)))
            assert listener.poll_accept(CODEC) == []
        assert len(os.listdir("/proc/self/fd")) - before == 1 + len(crowd) + _MAX_STRANGERS
        early.join(listener).close()
        late = Slow(listener, key)
        stack.callback(late.channel.close)
        late.join(listener).close()
        assert gone(crowd[0])  # the oldest made room
        assert not gone(crowd[-1])


def test_a_crowd_that_begins_to_talk_is_bounded_too() -> None:
    with by_hand() as (listener, key, _), contextlib.ExitStack() as stack:
        hello = client_hello()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(_MAX_STRANGERS + 20):
            stack.enter_context(dial(listener.address)).send(hello[:50])
            assert listener.poll_accept(CODEC) == []
        assert len(os.listdir("/proc/self/fd")) - before == 2 * _MAX_STRANGERS + 20
        late = Slow(listener, key)
        stack.callback(late.channel.close)
        late.join(listener).close()


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            pytest.skip(f"this process may open {hard} files only")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


# A member that misbehaves.


def test_a_frame_that_announces_too_much_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with pair("tls", tmp_path) as (alice, bob):
        alice._sock.send(struct.pack("<IHH", 2**31, 0, 0))
        with pytest.raises(BadFrame, match="limits"):
            bob.receive(soon())
        assert len(bob._inbox) < 100_000


def test_a_pin_has_one_size() -> None:
    with pytest.raises(UsageError, match="32 bytes, not 3"):
        Pin(b"abc")


def test_a_pin_is_learnt_only_from_who_holds_the_key(door: Door) -> None:
    """`shoal worker` has a secret and no ticket. Somebody in between relays all, with another certificate."""
    where = parse(door.address)
    assert isinstance(where, TlsAddress)
    assert learn_pin(where.place, door.key, soon()) == CERTIFICATE.pin
    door.admitted.get(timeout=10).close()
    with pytest.raises(Refused, match="does not hold this run's key"):
        learn_pin(where.place, RunKey.new(), soon())

    def carry(near: socket.socket, far: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with listening_context(OTHER).wrap_socket(near, server_side=True) as victim, context.wrap_socket(far) as target:
            target.sendall(victim.recv(40))
            victim.sendall(target.recv(72))
            said(victim)

    with in_between(door, carry) as port, pytest.raises(Refused, match="does not hold this run's key"):
        learn_pin(f"tls:127.0.0.1:{port}", door.key, soon())
    assert door.lets_members_in()
