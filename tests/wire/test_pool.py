"""Blocks that are used again: whose, and when not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.wire.memory import SharedBlock
from shoal.wire.pool import BlockPool

SIZE = 8192
NEVER, SOON = 60.0, 0.05


@pytest.fixture
def pool() -> Iterator[BlockPool]:
    """One that lets nothing go by itself."""
    before = set(os.listdir("/proc/self/fd"))
    made = BlockPool(NEVER)
    yield made
    made.clear()
    assert set(os.listdir("/proc/self/fd")) == before, "every descriptor is given back"


def test_ones_own_block_is_the_next_one_of_its_size(pool: BlockPool) -> None:
    block = pool.make("a bucket", SIZE)
    block.array(np.uint8, 0, 1)[0] = 7
    fd = block.fd
    pool.give_back(block)
    other, result = pool.make("another size", 4096), pool.make_shared("a result", SIZE, ["worker-1"])
    again = pool.make("the next bucket", SIZE)
    assert (again.fd, again.array(np.uint8, 0, 1)[0]) == (fd, 7)
    assert fd not in (other.fd, result.fd)
    pool.give_back(again)
    pool.give_back(other)  # the larger one is kept
    small = pool.make("small", 4096)
    assert small.fd != fd
    result.close()
    small.close()


def test_a_block_of_peers_is_used_again_if_all_who_can_write_to_it_may_still_do_so(pool: BlockPool) -> None:
    block = pool.make_shared("the sums of view 1", SIZE, ["worker-0", "worker-1"])
    fd = block.fd
    pool.give_back_shared(block, ["worker-0", "worker-1"])
    again = pool.make_shared("the sums of view 2", SIZE, ["worker-0", "worker-1", "worker-2"])
    assert again.fd == fd
    again.close()


def test_a_block_to_which_one_who_was_lost_can_write_is_not_used_again(pool: BlockPool) -> None:
    block = pool.make_shared("the sums of view 1", SIZE, ["worker-0", "worker-1"])
    woken = SharedBlock.open(os.dup(block.fd), SIZE, writable=True)
    pool.give_back_shared(block, ["worker-0", "worker-1"])
    after = pool.make_shared("the sums of view 2", SIZE, ["worker-0", "worker-2"])
    woken.array(np.uint8, 0, 1)[0] = 7
    assert after.array(np.uint8, 0, 1)[0] == 0
    woken.close()
    after.close()


def test_nobody_but_oneself_writes_to_a_block_of_ones_own_although_peers_blocks_are_kept(pool: BlockPool) -> None:
    pool.give_back_shared(pool.make_shared("sums", SIZE, ["worker-1"]), ["worker-1"])
    own = pool.make("a bucket", SIZE)
    with pytest.raises(PermissionError):
        os.pwrite(own.fd, b"x", 0)
    own.close()


def test_a_prepared_block_is_taken_when_it_is_there(pool: BlockPool) -> None:
    quick = BlockPool(later=0.0)
    quick.prepare(SIZE)
    assert quick._preparing is not None
    quick._preparing.join(10)
    made = quick._preparing._block
    assert made is not None
    block = quick.make_shared("sums", SIZE, ["worker-1"])
    assert block is made
    block.close()
    quick.clear()


def test_a_prepared_block_that_was_not_begun_is_not_waited_for(pool: BlockPool) -> None:
    pool.prepare(SIZE)
    began = time.monotonic()
    pool.make_shared("sums", SIZE, ["worker-1"]).close()
    assert time.monotonic() - began < NEVER / 2


def test_a_peers_block_is_not_mapped_twice(pool: BlockPool) -> None:
    theirs = SharedBlock.create("a bucket", SIZE)
    first = pool.map(os.dup(theirs.fd), SIZE)
    pool.unmap([first])
    again = pool.map(os.dup(theirs.fd), SIZE)
    assert again is first
    theirs.array(np.uint8, 0, 1)[0] = 5
    assert again.array(np.uint8, 0, 1)[0] == 5
    again.close()
    theirs.close()


def test_a_kept_mapping_of_another_kind_is_not_used(pool: BlockPool) -> None:
    theirs = SharedBlock.create("sums", SIZE, peers_write=True)
    pool.unmap([pool.map(os.dup(theirs.fd), SIZE)])
    writable = pool.map(os.dup(theirs.fd), SIZE, writable=True)
    writable.array(np.uint8, 0, 1)[0] = 3
    assert theirs.array(np.uint8, 0, 1)[0] == 3
    writable.close()
    theirs.close()


def test_what_nobody_asks_for_again_is_let_go(pool: BlockPool) -> None:
    before = set(os.listdir("/proc/self/fd"))
    quick = BlockPool(SOON)
    quick.give_back_shared(quick.make_shared("sums", SIZE, ["worker-1"]), ["worker-1"])
    theirs = SharedBlock.create("a bucket", SIZE)
    quick.unmap([quick.map(os.dup(theirs.fd), SIZE)])
    theirs.close()
    deadline = time.monotonic() + 10
    while set(os.listdir("/proc/self/fd")) != before:
        assert time.monotonic() < deadline
        time.sleep(SOON)
