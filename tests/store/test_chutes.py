"""Tensors between two processes of one host, both ends here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.store.chutes import SMALL, Incoming, Laid, Outgoing, Return
from shoal.store.tensors import Array, ArrayShape

SIZE = 50_000  # floats: three times what is worth a block


class Chute:
    """What one lays and the other takes."""

    def __init__(self) -> None:
        self.blocks = 0
        self.returned: list[Return] = []
        self.incoming = Incoming(self.returned.append)
        self.outgoing = Outgoing(self._share)

    def _share(self, share, fd: int) -> None:
        self.blocks += 1
        self.incoming.take(share, os.dup(fd))

    def send(self, array: Array) -> list[Array]:
        laid = self.outgoing.lay([array])
        assert isinstance(laid, Laid), "goes over the connection"
        self.incoming.heed(laid)
        return self.incoming.arrays([ArrayShape("float32", array.size)])

    def pass_returns(self) -> None:
        while self.returned:
            self.outgoing.returned(self.returned.pop())


@pytest.fixture
def chute() -> Iterator[Chute]:
    made = Chute()
    yield made
    made.outgoing.close()
    made.incoming.close()


def test_a_block_comes_back_when_the_last_array_in_it_is_gone(chute):
    received = chute.send(np.arange(SIZE, dtype=np.float32))
    assert (received[0] == np.arange(SIZE)).all()
    part = received[0][10:20]
    del received
    assert not chute.returned
    del part
    assert chute.returned == [Return(0)]


def test_shards_of_nearly_one_size_share_blocks(chute):
    for size in (SIZE, SIZE + 40, SIZE - 40, SIZE + 1000):
        assert chute.send(np.full(size, size, np.float32))[0][-1] == size
        chute.pass_returns()
    assert chute.blocks == 1


def test_many_are_on_their_way_at_a_time_and_each_stays_as_it_is(chute):
    kept = [chute.send(np.full(SIZE, number, np.float32)) for number in range(40)]
    assert [received[0][-1] for received in kept] == list(range(40))


def test_what_is_small_goes_over_the_connection(chute):
    assert chute.outgoing.lay([np.zeros(SMALL // 4 - 16, np.float32)]) is None
