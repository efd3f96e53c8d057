from __future__ import annotations

import collections
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadFrame, Refused, UsageError, WireError
from shoal.wire import Handshake, RunKey
from shoal.wire.keys import VERSION


def talk(one: Handshake, other: Handshake) -> list[bytes]:
    """Carry the handshake's words back and forth; returns them in order."""
    words = [one.first()]
    while not (one.done and other.done):
        speaker, hearer = (one, other) if len(words) % 2 else (other, one)
        words.append(hearer.feed(words[-1]))
        assert speaker is not hearer
    return words


def test_both_sides_with_the_key_are_done() -> None:
    key = RunKey.new()
    words = talk(Handshake(key, connects=True), Handshake(key, connects=False))
    assert [len(word) for word in words] == [40, 72, 32, 8, 0]


def test_a_wrong_key_is_found_out_by_who_connects() -> None:
    with pytest.raises(Refused, match="does not hold this run's key"):
        talk(Handshake(RunKey.new(), connects=True), Handshake(RunKey.new(), connects=False))


def test_a_wrong_proof_is_found_out_by_who_listens() -> None:
    ours = Handshake(RunKey.new(), connects=False)
    ours.feed(Handshake(RunKey.new(), connects=True).first())
    with pytest.raises(Refused, match="does not hold this run's key"):
        ours.feed(bytes(32))
    assert not ours.done


def test_a_replayed_conversation_proves_nothing() -> None:
    key = RunKey.new()
    words = talk(Handshake(key, connects=True), Handshake(key, connects=False))
    again = Handshake(key, connects=False)
    again.feed(words[0])
    with pytest.raises(Refused):
        again.feed(words[2])


def test_a_proof_cannot_be_sent_back_to_whom_it_came_from() -> None:
    """Without labels, a stranger could let a listener prove the key to itself."""
    key = RunKey.new()
    victim = Handshake(key, connects=False)
    answer = victim.feed(Handshake(RunKey.new(), connects=True).first())
    with pytest.raises(Refused):
        victim.feed(answer[40:])


def test_another_version_is_named() -> None:
    key = RunKey.new()
    greeting = bytearray(Handshake(key, connects=True).first())
    greeting[6] = VERSION + 1
    with pytest.raises(Refused, match=f"version {VERSION + 1}"):
        Handshake(key, connects=False).feed(bytes(greeting))


@given(st.data())
def test_garbage_never_gets_in_and_never_makes_a_listener_want_more(data: st.DataObject) -> None:
    ours = Handshake(RunKey.new(), connects=False)
    words = [data.draw(st.binary(min_size=size, max_size=size)) for size in (40, 32)]
    words[0] = data.draw(st.sampled_from([words[0], Handshake(RunKey.new(), connects=True).first()]))
    with pytest.raises(WireError):
        collections.deque(map(ours.feed, words), maxlen=0)
    assert not ours.done
    assert ours.wants <= 72


def test_the_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(BadFrame, match="wants 40 bytes, not 3"):
        Handshake(RunKey.new(), connects=False).feed(b"abc")


def test_a_key_goes_through_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    key = RunKey.new()
    key.save(tmp_path / "key")
    assert RunKey.load(tmp_path / "key") == key != RunKey.new()
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        key.save(tmp_path / "key")


def test_a_key_does_not_show_itself_and_has_one_size() -> None:
    assert repr(RunKey(b"s" * 32)) == "RunKey(secret)"
    with pytest.raises(UsageError, match="32 bytes, not 3"):
        RunKey(b"abc")
