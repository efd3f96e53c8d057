"""Memory that processes of one host share: sealed memfds, passed as descriptors, without a public name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from typing import Any

import numpy as np

from shoal.errors import BadFrame, NoSpace
from shoal.wire.available import available_memory

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h; not in every Python's fcntl


class SharedBlock:
    """One piece of shared memory, mapped into this process with all its pages in place.

    Its size is sealed: a peer can't shrink it under a reader's feet. Arrays handed out stay readable after
    `close`; the memory goes when the last of them does.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.writable = writable
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # MAP_POPULATE: page faults are paid here, once, and not in the first steps of a training run.
        self._map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=protection)

    @classmethod
    def create(cls, name: str, nbytes: int, *, peers_write: bool = False) -> SharedBlock:
        """A new block of zeros; NoSpace says how much was wanted, how much there is and what to do.

        With `peers_write` false the kernel lets nobody but this mapping write to it.
        """
        _check_space(name, nbytes)
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            block = cls(fd, nbytes, writable=True)
            last = 0 if peers_write else _F_SEAL_FUTURE_WRITE
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, last | fcntl.F_SEAL_SEAL)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise _no_space(name, nbytes, available_memory(), error.strerror or str(error)) from error
            raise
        return block

    @classmethod
    def open(cls, fd: int, nbytes: int, writable: bool = False) -> SharedBlock:
        """Map a peer's block; takes over `fd`. A BadFrame if its size or seals are not as promised."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            size = os.fstat(fd).st_size
            if seals & _SIZE_SEALS != _SIZE_SEALS:
                raise BadFrame("a peer's shared block is not sealed: it could shrink while it is read")
            if size != nbytes:
                raise BadFrame(f"a peer's shared block has {size:,} bytes, {nbytes:,} were promised")
            return cls(fd, nbytes, writable=writable)
        except OSError as error:
            os.close(fd)
            raise BadFrame(f"a peer's descriptor is not a shared block: {error.strerror}") from error
        except BadFrame:
            os.close(fd)
            raise

    def array(self, dtype: np.dtype[Any] | type[np.generic] | str, offset: int, count: int) -> np.ndarray[Any, Any]:
        """`count` elements from byte `offset` on, in place. Read-only unless the block is writable."""
        return np.frombuffer(self._map, dtype=dtype, count=count, offset=offset)

    def view(self) -> memoryview:
        """The whole block as bytes, in place."""
        return memoryview(self._map)

    def close(self) -> None:
        """Close the descriptor and unmap, or leave the unmapping to the last array that still reads."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self._map.close()


def close_all(fds: list[int]) -> None:
    """Give back descriptors that nobody mapped."""
    while fds:
        os.close(fds.pop())


def _check_space(name: str, nbytes: int) -> None:
    """Refuse what can't fit before asking the kernel: it would rather kill a process than say no."""
    if nbytes <= 0:
        raise ValueError(f"a shared block needs at least 1 byte, not {nbytes}")
    free = available_memory()
    if nbytes > free:
        raise _no_space(name, nbytes, free, "more than there is")


def _no_space(name: str, nbytes: int, free: int, why: str) -> NoSpace:
    return NoSpace(
        f"no space in shared memory for {name}: {nbytes / 2**20:,.1f} MiB wanted, {free / 2**20:,.1f} MiB "
        f"available ({why}). Use fewer workers or a smaller model, free memory, or raise the limits "
        "(ulimit -f, the container's memory)."
    )
