"""Memory that processes of one host share: sealed memfds, passed as descriptors, without a public name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from shoal.errors import BadFrame, NoSpace

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_LATER = 1.0  # seconds until what can wait is done
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
    def create(cls, name: str, nbytes: int, *, writers: Collection[str] = ()) -> SharedBlock:
        """A block; NoSpace says how much was wanted, how much there is and what to do. Its contents may be old.

        Without `writers` the kernel lets nobody but this mapping write to it. They are the peers that may: whoever
        could write to an older one that is used again must be among them.
        """
        ready = (_take_shelved(nbytes, writers) or _take_prepared(nbytes)) if writers else _take_spare(nbytes)
        if ready is not None:
            return ready
        _check_space(name, nbytes)
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            block = cls(fd, nbytes, writable=True)
            last = 0 if writers else _F_SEAL_FUTURE_WRITE
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, last | fcntl.F_SEAL_SEAL)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise _no_space(name, nbytes, available(), error.strerror or str(error)) from error
            raise
        return block

    @classmethod
    def open(cls, fd: int, nbytes: int, writable: bool = False) -> SharedBlock:
        """Map a peer's block; takes over `fd`. A BadFrame if its size or seals are not as promised.

        One that was mapped before and has been kept is not mapped again.
        """
        if (kept := _take_kept(fd)) is not None and (kept.nbytes, kept.writable) == (nbytes, writable):
            os.close(fd)
            return kept
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

    def recycle(self) -> None:
        """Keep a block of one's own for the next one of its size: making one takes as long as filling it.

        Not for blocks that peers write to: one of them may wake up late and still do so. `shelve` is for these.
        """
        global _spare
        smaller: SharedBlock | None = self
        with _lock:
            if _spare is None or _spare.nbytes < self.nbytes:
                _spare, smaller = self, _spare
        if smaller is not None:
            smaller.close()

    def close(self) -> None:
        """Close the descriptor and unmap, or leave the unmapping to the last array that still reads."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        with contextlib.suppress(BufferError):
            self._map.close()


_lock = threading.Lock()  # guards what follows
_spare: SharedBlock | None = None


def _take_spare(nbytes: int) -> SharedBlock | None:
    global _spare
    with _lock:
        if _spare is None or _spare.nbytes != nbytes:
            return None
        taken, _spare = _spare, None
    return taken


def prepare(nbytes: int) -> None:
    """Make a block of this size that peers may write to, in the background: who wants one next has it at once."""
    global _preparing
    with _lock:
        if _preparing is not None and _preparing.nbytes == nbytes:
            return
        before, _preparing = _preparing, None
        if nbytes <= available() // 4:  # a spare must not be what leads to the lack
            _preparing = _Prepared(nbytes)
            _preparing.start()
    if before is not None:
        before.drop()


class _Prepared(threading.Thread):
    """A block that is made a little later: when memory is asked for, the processors often have enough to do."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(name="shoal-memory", daemon=True)
        self.nbytes = nbytes
        self._wanted = threading.Event()
        self._block: SharedBlock | None = None

    def run(self) -> None:
        if not self._wanted.wait(_LATER):
            with contextlib.suppress(OSError, NoSpace):  # whoever needs it finds out
                self._block = SharedBlock.create("prepared", self.nbytes, writers=("peers to come",))

    def take(self) -> SharedBlock | None:
        """None if it has not been begun."""
        self._wanted.set()
        self.join()
        return self._block

    def drop(self) -> None:
        if (block := self.take()) is not None:
            block.close()


_preparing: _Prepared | None = None


def _take_prepared(nbytes: int) -> SharedBlock | None:
    global _preparing
    with _lock:
        if _preparing is None or _preparing.nbytes != nbytes or _preparing is threading.current_thread():
            return None
        taken, _preparing = _preparing, None
    return taken.take()


def drop_prepared() -> None:
    """Give back what was prepared, if anything."""
    global _preparing
    with _lock:
        before, _preparing = _preparing, None
    if before is not None:
        before.drop()


_shelved: tuple[SharedBlock, frozenset[str]] | None = None  # and who may write to it


def shelve(block: SharedBlock, writers: Collection[str]) -> None:
    """Keep a block that these peers may write to, for the next one that all of them may write to."""
    global _shelved
    with _lock:
        before, _shelved = _shelved, (block, frozenset(writers))
    if before is not None:
        before[0].close()


def _take_shelved(nbytes: int, writers: Collection[str]) -> SharedBlock | None:
    global _shelved
    with _lock:
        if _shelved is None or _shelved[0].nbytes != nbytes or not _shelved[1].issubset(writers):
            return None
        (taken, _), _shelved = _shelved, None
    return taken


_kept: dict[tuple[int, int], SharedBlock] = {}  # by what tells one file from another


def keep(blocks: Sequence[SharedBlock]) -> None:
    """Leave a peer's blocks mapped for a while: to map them again, after a change of view, takes milliseconds."""
    files = [_file(block.fd) for block in blocks]
    with _lock:
        twice = [_kept[file] for file in files if file in _kept]
        _kept.update(zip(files, blocks, strict=True))
    for block in twice:
        block.close()


def _take_kept(fd: int) -> SharedBlock | None:
    with _lock:
        return _kept.pop(_file(fd), None) if _kept else None


def drop_kept() -> None:
    """Unmap those that nobody asked for again, and what is on the shelf."""
    global _shelved
    with _lock:
        dropped = list(_kept.values())
        _kept.clear()
        if _shelved is not None:
            dropped.append(_shelved[0])
            _shelved = None
    for block in dropped:
        block.close()


def drop_kept_later() -> None:
    """Not now: it takes as long as mapping them."""
    timer = threading.Timer(_LATER, drop_kept)
    timer.daemon = True
    timer.start()


def _file(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def drop_spare() -> None:
    """Give the recycled block back, if there is one."""
    global _spare
    if _spare is not None:
        _spare.close()
    _spare = None


def close_all(fds: list[int]) -> None:
    """Give back descriptors that nobody mapped."""
    while fds:
        os.close(fds.pop())


def available() -> int:
    """Bytes that this process may still get: the machine's, or its control group's, whichever is less."""
    free: int = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return max(free, 0)


def _check_space(name: str, nbytes: int) -> None:
    """Refuse what can't fit before asking the kernel: it would rather kill a process than say no."""
    if nbytes <= 0:
        raise ValueError(f"a shared block needs at least 1 byte, not {nbytes}")
    free = available()
    if nbytes > free:
        raise _no_space(name, nbytes, free, "more than there is")


def _no_space(name: str, nbytes: int, free: int, why: str) -> NoSpace:
    return NoSpace(
        f"no space in shared memory for {name}: {nbytes / 2**20:,.1f} MiB wanted, {free / 2**20:,.1f} MiB "
        f"available ({why}). Use fewer workers or a smaller model, free memory, or raise the limits "
        "(ulimit -f, the container's memory)."
    )
