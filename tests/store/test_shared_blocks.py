"""Tensors between two processes of one host, both ends here."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.errors import NoSpace
from shoal.store.shared_blocks import SMALL, Incoming, Laid, Outgoing, Return
from shoal.store.values.tensors import Array, ArrayShape
from shoal.wire.memory import SharedBlock

SIZE = 50_000  # floats: three times what is worth a block


class Chute:
    """What one lays and the other takes."""

    def __init__(self, spare: list[SharedBlock]) -> None:
        self.blocks: list[int] = []  # the files behind them
        self.returned: list[Return] = []
        self.incoming = Incoming(self.returned.append)
        self.outgoing = Outgoing(self._share, spare)

    def _share(self, share, fd: int) -> None:
        self.blocks.append(os.fstat(fd).st_ino)
        self.incoming.open_block(share, os.dup(fd))

    def send(self, array: Array) -> list[Array]:
        laid = self.outgoing.lay([array])
        assert isinstance(laid, Laid), "goes over the connection"
        self.incoming.heed(laid)
        return self.incoming.arrays([ArrayShape("float32", array.size)])

    def pass_returns(self) -> None:
        while self.returned:
            self.outgoing.returned(self.returned.pop())

    def close(self) -> None:
        self.outgoing.close()
        self.incoming.close()


@pytest.fixture
def spare() -> Iterator[list[SharedBlock]]:
    blocks: list[SharedBlock] = []
    yield blocks
    for block in blocks:
        block.close()


@pytest.fixture
def shared_block(spare: list[SharedBlock]) -> Iterator[Chute]:
    with contextlib.closing(Chute(spare)) as made:
        yield made


def test_a_block_comes_back_when_the_last_array_in_it_is_gone(shared_block):
    received = shared_block.send(np.arange(SIZE, dtype=np.float32))
    assert (received[0] == np.arange(SIZE)).all()
    part = received[0][10:20]
    del received
    assert not shared_block.returned
    del part
    assert shared_block.returned == [Return(0)]


def test_shards_of_nearly_one_size_share_blocks(shared_block):
    for size in (SIZE, SIZE + 40, SIZE - 40, SIZE + 1000):
        assert shared_block.send(np.full(size, size, np.float32))[0][-1] == size
        shared_block.pass_returns()
    assert len(shared_block.blocks) == 1


def test_many_are_on_their_way_at_a_time_and_each_stays_as_it_is(shared_block):
    kept = [shared_block.send(np.full(SIZE, number, np.float32)) for number in range(40)]
    assert [received[0][-1] for received in kept] == list(range(40))


def test_what_a_lost_receiver_gave_back_is_kept_for_others_and_what_it_may_still_read_is_not(spare):
    with contextlib.closing(Chute(spare)) as lost:
        read, given_back = (lost.send(np.full(SIZE, number, np.float32)) for number in range(2))
        del given_back
        lost.pass_returns()
    with contextlib.closing(Chute(spare)) as other:
        kept = [other.send(np.full(SIZE, 7, np.float32)) for _ in range(3)]
        assert [received[0][0] for received in kept] == [7, 7, 7]
        assert other.blocks[0] == lost.blocks[1]
        assert lost.blocks[0] not in other.blocks
    assert (read[0] == 0).all()


def test_what_is_small_goes_over_the_connection(shared_block):
    assert shared_block.outgoing.lay([np.zeros(SMALL // 4 - 16, np.float32)]) is None


@pytest.mark.parametrize("lack", [NoSpace("shared memory is full"), OSError(errno.EMFILE, "Too many open files")])
def test_without_room_or_a_descriptor_tensors_go_over_the_connection(
    shared_block, lack: Exception, monkeypatch: pytest.MonkeyPatch
):
    def create(*_: object) -> SharedBlock:
        raise lack

    monkeypatch.setattr(SharedBlock, "create", create)
    assert shared_block.outgoing.lay([np.ones(SIZE, "float32")]) is None
