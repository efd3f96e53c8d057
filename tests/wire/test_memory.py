from __future__ import annotations

import fcntl
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from shoal.errors import BadFrame, NoSpace
from shoal.wire.memory import SharedBlock


@pytest.fixture
def block() -> Iterator[SharedBlock]:
    made = SharedBlock.create("test", 8192)
    yield made
    made.close()


def test_what_one_writes_the_other_reads_in_place(block: SharedBlock) -> None:
    peer = SharedBlock.open(os.dup(block.fd), 8192)
    ours, theirs = block.array(np.float32, 4096, 100), peer.array(np.float32, 4096, 100)
    assert not theirs.any()
    ours[:] = np.arange(100)
    np.testing.assert_array_equal(theirs, np.arange(100))
    peer.close()


def test_a_peer_cannot_write_into_a_block_that_is_not_for_it(block: SharedBlock) -> None:
    peer = SharedBlock.open(os.dup(block.fd), 8192)
    assert not peer.array(np.uint8, 0, 1).flags.writeable
    peer.close()
    with pytest.raises(BadFrame, match="not permitted"):
        SharedBlock.open(os.dup(block.fd), 8192, writable=True)
    with pytest.raises(PermissionError):
        os.pwrite(block.fd, b"x", 0)


def test_peers_write_into_a_block_that_is_for_all() -> None:
    ours = SharedBlock.create("result", 4096, peers_write=True)
    theirs = SharedBlock.open(os.dup(ours.fd), 4096, writable=True)
    theirs.array(np.int64, 0, 1)[0] = 7
    assert ours.array(np.int64, 0, 1)[0] == 7
    ours.close()
    theirs.close()


def test_the_size_is_sealed(block: SharedBlock) -> None:
    for size in (0, 100, 100_000):
        with pytest.raises(PermissionError):
            os.ftruncate(block.fd, size)
    with pytest.raises(PermissionError):  # and the seals themselves
        fcntl.fcntl(block.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_block_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(BadFrame, match="not sealed"):
        SharedBlock.open(fd, 4096)


def test_a_block_of_another_size_than_promised_is_refused(block: SharedBlock) -> None:
    with pytest.raises(BadFrame, match="has 8,192 bytes, 4,096 were promised"):
        SharedBlock.open(os.dup(block.fd), 4096)


def test_a_descriptor_that_is_no_block_is_refused() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(BadFrame, match="not a shared block"):
        SharedBlock.open(reading, 4096)


def test_arrays_outlive_their_block() -> None:
    block = SharedBlock.create("test", 4096)
    array = block.array(np.int64, 0, 512)
    array[:] = 3
    block.close()
    block.close()
    assert array.sum() == 3 * 512


def test_the_pages_are_in_place_before_the_first_step() -> None:
    block = SharedBlock.create("test", 4 << 20)
    array = block.array(np.uint8, 0, 4 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[:: mmap.PAGESIZE] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100
    block.close()


def test_no_space_says_how_much_was_wanted_and_what_to_do() -> None:
    with pytest.raises(
        NoSpace, match=r"for gradients: 1,073,741,824\.0 MiB wanted, .* MiB available .*Use fewer workers"
    ):
        SharedBlock.create("gradients", 1 << 50)


def test_a_limit_of_the_system_is_no_space_too() -> None:
    script = """
import resource
from shoal.errors import NoSpace
from shoal.wire.memory import SharedBlock
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    SharedBlock.create("gradients", 2 << 20)
except NoSpace as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "gradients: 2.0 MiB wanted" in done.stdout
    assert "File too large" in done.stdout
    assert "ulimit -f" in done.stdout


def test_nothing_of_no_size() -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        SharedBlock.create("nothing", 0)
