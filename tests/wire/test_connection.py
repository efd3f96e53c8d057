from __future__ import annotations

import os
import select
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from shoal.clock import Deadline
from shoal.errors import BadFrame, PeerClosed, PeerTimeout, RunEnded, UsageError, WireError
from shoal.wire import Connection, MessageCodec, Receive, Sending, Wakeup, frames, transfer

from .scene import CODEC, KINDS, Other, Word, pair, soon


@pytest.mark.parametrize("kind", KINDS)
def test_messages_arrive_whole_and_in_order(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (alice, bob):
        for n in range(100):
            alice.send(Word(n, "x" * n))
        assert [bob.receive(soon()) for _ in range(100)] == [Word(n, "x" * n) for n in range(100)]
        bob.send(Word(-1))
        assert alice.receive(soon()) == Word(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_are_received_into_place(kind: str, tmp_path: Path) -> None:
    sent = [np.arange(10, dtype=np.float32), np.empty(0, np.uint8), np.arange(300_000, dtype=np.int64)]
    places = [np.zeros_like(array) for array in sent]
    with pair(kind, tmp_path) as (alice, bob):
        both = transfer(
            [Sending(alice, Word(1), [array.data for array in sent])],
            [Receive(bob, lambda _: [place.data for place in places])],
            soon(),
        )
        assert both == [Word(1)]
        alice.send(Word(2))
        assert bob.receive(soon()) == Word(2)
    for array, place in zip(sent, places, strict=True):
        np.testing.assert_array_equal(array, place)


@pytest.mark.parametrize("kind", KINDS)
def test_both_may_send_more_than_the_kernel_holds_at_once(kind: str, tmp_path: Path) -> None:
    much = np.random.default_rng(0).integers(0, 255, 20_000_000, np.uint8)
    landed = [np.zeros_like(much), np.zeros_like(much)]
    with pair(kind, tmp_path) as (alice, bob):
        transfer(
            [Sending(alice, Word(1), [much.data]), Sending(bob, Word(2), [much.data])],
            [Receive(alice, lambda _: [landed[0].data]), Receive(bob, lambda _: [landed[1].data])],
            soon(),
        )
        assert alice.bytes_sent == bob.bytes_received > much.nbytes
        assert alice.bytes_sent - much.nbytes < 100
    np.testing.assert_array_equal(landed[0], much)
    np.testing.assert_array_equal(landed[1], much)


@pytest.mark.parametrize("offered", [[], [3], [4, 1], [5]], ids=str)
def test_buffers_that_do_not_fit_their_place_are_refused(offered: list[int], tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        alice.send(Word(1), [memoryview(b"four")])
        with pytest.raises(BadFrame, match=r"Word from bob brings buffers of 4 bytes; expected"):
            bob.receive(soon(), lambda _: [memoryview(bytearray(size)) for size in offered])


def test_a_frame_that_announces_too_much_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        alice._sock.send(struct.pack("<IHH", 2**31, 0, 0))
        with pytest.raises(BadFrame, match="limits"):
            bob.receive(soon())
        assert len(bob._inbox) < 100_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_header_passes(kind: str, tmp_path: Path) -> None:
    word = Word(1, "x" * (frames.MAX_HEADER - 100))
    with pair(kind, tmp_path) as (alice, bob):
        assert transfer([Sending(alice, word)], [Receive(bob)], soon()) == [word]
        with pytest.raises(UsageError, match="too large"):
            alice.send(Word(1, "x" * frames.MAX_HEADER))


def test_a_frame_may_come_byte_by_byte(tmp_path: Path) -> None:
    head = frames.head(CODEC.encode(Word(7, "seven")), [3])
    place = bytearray(3)
    with pair("unix", tmp_path) as (alice, bob):
        for byte in head + b"ab":
            assert bob.try_receive(lambda _: [memoryview(place)]) is None
            alice._sock.send(bytes([byte]))
        assert bob.try_receive(lambda _: [memoryview(place)]) is None
        alice._sock.send(b"c")
        assert bob.receive(soon(), lambda _: [memoryview(place)]) == Word(7, "seven")
    assert place == b"abc"


def test_a_message_of_another_type_is_refused_and_its_sender_named(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        alice._codec = MessageCodec(Other)
        alice.send(Other(1))
        with pytest.raises(BadFrame, match="from bob: not a message that is understood here"):
            bob.receive(soon())


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_peer_is_named_after_all_that_it_said_is_heard(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (alice, bob):
        alice.send(Word(1))
        alice.close()
        assert bob.receive(soon()) == Word(1)
        with pytest.raises(PeerClosed, match="connection to bob closed") as caught:
            bob.receive(soon())
        assert caught.value.peer == "bob"


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_peer_is_named_when_the_deadline_passes(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (_, bob):
        with pytest.raises(PeerTimeout, match=r"bob did not send a message within 0\.0 s") as caught:
            bob.receive(Deadline.after(0.02))
        assert caught.value.missing == ("bob",)


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_reads_nothing_is_named_when_the_deadline_passes(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (alice, _):
        with pytest.raises(PeerTimeout, match="alice did not take a message"):
            alice.send(Word(1), [memoryview(bytes(30_000_000))], Deadline.after(0.3))
        assert alice.pending
        with pytest.raises(PeerTimeout, match="no transfer with alice in time"):
            transfer([Sending(alice, Word(2))], [], Deadline.after(0.02))


def test_a_wakeup_ends_a_wait_with_its_reason(tmp_path: Path) -> None:
    wake = Wakeup()
    with pair("unix", tmp_path) as (_, bob):
        waker = threading.Timer(0.02, wake.set, [RunEnded("worker-3 died")])
        waker.start()
        with pytest.raises(RunEnded, match="worker-3 died"):
            bob.receive(soon(), wake=wake)
        with pytest.raises(RunEnded, match="worker-3 died"):
            transfer([], [Receive(bob)], soon(), wake)
        waker.join()
    wake.close()


def test_descriptors_travel_with_their_frame_even_behind_others(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        reading, writing = os.pipe()
        alice.send(Word(1))
        alice.send_fds(Word(2), [reading, writing])
        alice.send(Word(3))
        os.close(reading)
        os.close(writing)
        assert bob.receive(soon()) == Word(1)
        message, fds = bob.receive_fds(soon())
        assert (message, len(fds)) == (Word(2), 2)
        assert bob.receive_fds(soon()) == (Word(3), [])
        os.write(fds[1], b"through")
        assert os.read(fds[0], 10) == b"through"
        assert not any(os.get_inheritable(fd) for fd in fds)
        for fd in fds:
            os.close(fd)


def test_descriptors_that_nobody_asked_for_are_refused_and_closed(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        alice.send_fds(Word(1), [0])
        with pytest.raises(BadFrame, match="1 descriptors"):
            bob.receive(soon())


def test_more_descriptors_than_a_frame_carries_are_refused(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        socket.send_fds(alice._sock, [b"x"], [0] * 40)
        with pytest.raises(BadFrame, match="more descriptors"):
            bob.receive(soon())


def test_announced_descriptors_that_did_not_come_are_refused(tmp_path: Path) -> None:
    with pair("unix", tmp_path) as (alice, bob):
        alice._sock.send(frames.head(CODEC.encode(Word(1)), descriptors=1))
        with pytest.raises(BadFrame, match="0 came"):
            bob.receive_fds(soon())


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_descriptors_travel_over_unix_sockets_only(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (alice, _), pytest.raises(WireError, match="unix sockets only"):
        alice.send_fds(Word(1), [0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_poll_does_not_see_is_called_buffered(kind: str, tmp_path: Path) -> None:
    """Three frames come in one read: after the first, a poll may say that there is nothing."""
    with pair(kind, tmp_path) as (alice, bob):
        words = [Word(n, "x" * 5000) for n in range(9)]
        for word in words:
            alice.send(word)
        heard = [bob.receive(soon())]
        while len(heard) < len(words):
            assert bob.buffered or select.select([bob], [], [], 10)[0]
            message = bob.try_receive()
            heard += [message] if message else []
        assert heard == words
        assert not bob.buffered
        assert bob.try_receive() is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_posted_is_pending_until_the_kernel_has_all_of_it(kind: str, tmp_path: Path) -> None:
    """Also what TLS has made records of and could not send: nobody else would come back for it."""
    much = memoryview(bytes(20_000_000))
    with pair(kind, tmp_path) as (alice, bob):
        alice.post(Word(1), [much])
        place = memoryview(bytearray(much.nbytes))
        assert alice.pending
        while bob.try_receive(lambda _: [place]) is None:
            alice.flush()
        assert not alice.pending
        assert alice.bytes_sent == bob.bytes_received


def test_records_that_could_not_be_sent_are_pending(tmp_path: Path) -> None:
    """TLS has taken all bytes and made records of them; what counts is what the kernel has."""
    with pair("tls", tmp_path) as (alice, bob):
        posted = 0
        while not alice.pending:
            alice.post(Word(posted, "x" * 100_000))
            posted += 1
        assert not alice._outbox
        heard = 0
        while heard < posted:
            alice.flush()
            heard += bob.try_receive() is not None
        assert not alice.pending


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_gone_takes_nothing_and_leaves_nothing_pending(kind: str, tmp_path: Path) -> None:
    with pair(kind, tmp_path) as (alice, bob):
        alice.post(Word(1), [memoryview(bytes(20_000_000))])
        bob.close()
        with pytest.raises(PeerClosed, match="connection to alice closed"):
            alice.send(Word(2))
        assert not alice.pending


def test_a_socket_that_the_kernel_gave_up_names_its_peer() -> None:
    one, other = socket.socketpair()
    connection = Connection(one, CODEC, "carol")
    other.close()
    with pytest.raises(PeerClosed, match="connection to carol closed"):
        connection.send(Word(1))
    connection.close()
