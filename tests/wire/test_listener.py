from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.clock import Deadline, ManualClock
from shoal.errors import PeerClosed, PeerTimeout, Refused, RunEnded, UsageError
from shoal.wire import Connection, Handshake, Listener, RunKey, Wakeup, connect
from shoal.wire.listener import _MAX_STRANGERS

from .scene import CERTIFICATE, CODEC, KINDS, Word, address, dial, listening, soon


@contextlib.contextmanager
def joining(listener: Listener, key: RunKey) -> Iterator[list[object]]:
    """Somebody connects in another thread; the list gets the connection or the error."""
    outcome: list[object] = []

    def join() -> None:
        try:
            outcome.append(connect(listener.address, key, CODEC, soon()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(20)
        for one in outcome:
            if isinstance(one, Connection):
                one.close()


def hung_up(stranger: socket.socket) -> bool:
    """Whether the listener has closed on a stranger, whatever it said before."""
    try:
        while stranger.recv(100):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_of_all_kinds_delay_nobody(kind: str, tmp_path: Path) -> None:
    with listening(kind, tmp_path) as (listener, key), contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(dial(listener.address)) for _ in range(5)]
        idle, garbage, half, wrong_magic, gone = strangers
        garbage.send(os.urandom(500))
        half.send(Handshake(key, connects=True).first()[:17])
        wrong_magic.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(20))
        gone.close()
        with joining(listener, key):
            ours = listener.accept(CODEC, soon())
            ours.close()
        assert hung_up(garbage)
        assert hung_up(wrong_magic)
        idle.setblocking(False)
        with pytest.raises(BlockingIOError):  # still has time to prove the key
            idle.recv(1)


def test_without_the_key_nobody_gets_in(tmp_path: Path) -> None:
    with (
        listening("unix", tmp_path) as (listener, _),
        joining(listener, RunKey.new()) as outcome,
        pytest.raises(PeerTimeout, match="nobody with this run's key"),
    ):
        listener.accept(CODEC, Deadline.after(0.3))
    assert isinstance(outcome[0], Refused)
    assert "does not hold this run's key" in str(outcome[0])


def test_a_replayed_handshake_gets_nobody_in(tmp_path: Path) -> None:
    """A stranger that has listened to a whole conversation says the same words again."""
    with listening("unix", tmp_path) as (listener, key):
        ours = Handshake(key, connects=True)
        words = [ours.first()]
        with dial(listener.address) as honest:
            honest.send(words[0])
            assert listener.poll_accept(CODEC) == []
            words.append(ours.feed(honest.recv(72)))
            honest.send(words[1])
            (accepted,) = listener.poll_accept(CODEC)
            accepted.close()
        with dial(listener.address) as replay:
            for word in words:
                replay.send(word)
            assert listener.poll_accept(CODEC) == []
            assert hung_up(replay)


def test_a_listener_without_the_key_is_found_out(tmp_path: Path) -> None:
    """Somebody else sits at the address: nothing but a greeting and a proof for this nonce is given away."""
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"{tmp_path}/s.sock")
        impostor.listen()

        def play() -> None:
            client, _ = impostor.accept()
            with client:
                client.recv(100)
                client.send(Handshake(RunKey.new(), connects=True).first() + bytes(32))

        thread = threading.Thread(target=play)
        thread.start()
        with pytest.raises(Refused, match="does not hold this run's key"):
            connect(f"unix:{tmp_path}/s.sock", RunKey.new(), CODEC, soon())
        thread.join()


def test_a_stranger_that_takes_too_long_is_hung_up_on(tmp_path: Path) -> None:
    clock = ManualClock()
    listener = Listener(address("unix", tmp_path), RunKey.new(), clock)
    with dial(listener.address) as idle:
        assert listener.poll_accept(CODEC) == []
        clock.advance(10.0)
        assert listener.poll_accept(CODEC) == []
        assert hung_up(idle)
    listener.close()


def test_a_crowd_of_strangers_costs_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as (listener, key), contextlib.ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(_MAX_STRANGERS + 30):
            stack.enter_context(dial(listener.address))
            assert listener.poll_accept(CODEC) == []
        held_by_listener = len(os.listdir("/proc/self/fd")) - before - (_MAX_STRANGERS + 30)
        assert held_by_listener == _MAX_STRANGERS
        with joining(listener, key):
            listener.accept(CODEC, soon()).close()


def test_one_descriptor_tells_a_selector_when_there_is_something_to_do(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as (listener, key), joining(listener, key) as outcome:
        accepted: list[Connection] = []
        while not accepted:
            assert select.select([listener], [], [], 10)[0] == [listener]
            accepted = listener.poll_accept(CODEC)
        accepted[0].close()
    assert isinstance(outcome[0], Connection)


def test_nobody_listens_there(tmp_path: Path) -> None:
    with pytest.raises(PeerClosed, match=r"no connection to unix:.*No such file"):
        connect(f"unix:{tmp_path}/none.sock", RunKey.new(), CODEC, soon())
    with listening("tcp", tmp_path) as (listener, key):
        where = listener.address
    with pytest.raises(PeerClosed, match="refused"):
        connect(where, key, CODEC, soon())


def test_a_listener_that_never_answers_is_named_when_the_deadline_passes(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as (listener, key):
        with pytest.raises(PeerTimeout, match="did not finish the handshake") as caught:
            connect(listener.address, key, CODEC, Deadline.after(0.02))
        assert caught.value.missing == (listener.address,)


def test_a_wakeup_ends_accept_and_connect(tmp_path: Path) -> None:
    wake = Wakeup()
    wake.set(RunEnded("over"))
    with listening("unix", tmp_path) as (listener, key):
        with pytest.raises(RunEnded):
            listener.accept(CODEC, soon(), wake)
        with pytest.raises(RunEnded):
            connect(listener.address, key, CODEC, soon(), wake)
    wake.close()


def test_an_address_in_use_says_what_to_do(tmp_path: Path) -> None:
    for kind in KINDS:
        with (
            listening(kind, tmp_path) as (listener, key),
            pytest.raises(UsageError, match=r"is in use by another process\. Stop it, or choose another"),
        ):
            Listener(listener.address, key, certificate=CERTIFICATE)


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot listen at unix:.*No such file"):
        Listener(f"unix:{tmp_path}/none/s.sock", RunKey.new())


def test_a_unix_socket_is_its_owners_alone_and_goes_with_its_listener(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as (listener, _):
        assert stat.S_IMODE((tmp_path / "s.sock").stat().st_mode) == 0o600
        listener.close()
        assert not (tmp_path / "s.sock").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_connection_hides_nothing_from_a_poll(kind: str, tmp_path: Path) -> None:
    """What is said right behind the welcome is still in the kernel, where a selector sees it."""
    with listening(kind, tmp_path) as (listener, key), joining(listener, key) as outcome:
        ours = listener.accept(CODEC, soon())
        ours.send(Word(1))
        while not outcome:
            time.sleep(0.001)
        (theirs,) = outcome
        assert isinstance(theirs, Connection)
        assert not theirs.buffered
        assert select.select([theirs], [], [], 10)[0] == [theirs]
        assert theirs.try_receive() == Word(1)
        ours.close()


def test_messages_flow_as_soon_as_both_are_proven(tmp_path: Path) -> None:
    with listening("tcp", tmp_path) as (listener, key), joining(listener, key) as outcome:
        ours = listener.accept(CODEC, soon())
        ours.send(Word(1))
        ours.close()
    assert isinstance(outcome[0], Connection)


def test_a_socket_whose_path_was_removed_is_reachable_again(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as (listener, key):
        assert not listener.restore(), "it is there"
        path = Path(listener.address.removeprefix("unix:"))
        folder = path.parent
        with joining(listener, key) as before:
            theirs = listener.accept(CODEC, soon())
        assert isinstance(before[0], Connection)
        path.unlink()
        folder.rename(folder.with_name("gone"))
        assert not listener.restore(), "there is nowhere to listen yet"
        folder.mkdir()
        assert listener.restore()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for _ in range(2):
            with joining(listener, key) as after:
                listener.accept(CODEC, soon()).close()
            assert isinstance(after[0], Connection)
        theirs.close()
    assert not path.exists()
    assert not listener.restore(), "it is closed"
