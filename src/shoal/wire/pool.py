"""Blocks of shared memory between two uses: to make one, or to map one, takes as long as to fill it.

    own      written by this process alone: the next one of its size, with its old contents
    shared   written by peers too: only if all who could write to it may write to the next one, since one of them may be
             stopped and wake up later. Otherwise a new one, which was prepared in the background if there was time
    mapped   a peer's: stays mapped for a while, and is not mapped again if the peer hands out the same one

What was given back is let go of after a second, but for one block of one's own. What can wait is done then: a change of
view, in which all this happens, is when the processors have enough to do.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Sequence

from shoal.errors import NoSpace
from shoal.wire.available import available_memory
from shoal.wire.memory import SharedBlock

_LATER = 1.0  # seconds


class BlockPool:
    """The blocks of one process. May be used by any thread."""

    def __init__(self, later: float = _LATER) -> None:
        self._later = later
        self._lock = threading.Lock()  # guards what follows
        self._own: SharedBlock | None = None
        self._shared: tuple[SharedBlock, frozenset[str]] | None = None  # and who can write to it
        self._mapped: dict[tuple[int, int], SharedBlock] = {}  # by what tells one file from another
        self._preparing: _Preparing | None = None

    # Taking ---------------------------------------------------------------------------------------------

    def make(self, name: str, nbytes: int) -> SharedBlock:
        """A block to which only this process writes. NoSpace if there is none to be had."""
        with self._lock:
            if self._own is not None and self._own.nbytes == nbytes:
                taken, self._own = self._own, None
                return taken
        return SharedBlock.create(name, nbytes)

    def make_shared(self, name: str, nbytes: int, writers: Collection[str]) -> SharedBlock:
        """A block to which these peers write, and nobody else can. NoSpace if there is none to be had."""
        with self._lock:
            if self._shared is not None and self._shared[0].nbytes == nbytes and self._shared[1].issubset(writers):
                (taken, _), self._shared = self._shared, None
                return taken
            prepared = self._preparing if self._preparing is not None and self._preparing.nbytes == nbytes else None
            self._preparing = None if prepared is not None else self._preparing
        block = prepared.take() if prepared is not None else None
        return block or SharedBlock.create(name, nbytes, peers_write=True)

    def map(self, fd: int, nbytes: int, writable: bool = False) -> SharedBlock:
        """A peer's block; takes over `fd`. A BadFrame if it is not as promised."""
        with self._lock:
            block = self._mapped.pop(_file(fd), None) if self._mapped else None
        if block is None:
            return SharedBlock.open(fd, nbytes, writable)
        if (block.nbytes, block.writable) == (nbytes, writable):
            os.close(fd)
            return block
        block.close()
        return SharedBlock.open(fd, nbytes, writable)

    def prepare(self, nbytes: int) -> None:
        """There may be need for a block of this size to which peers write: make one when there is time."""
        with self._lock:
            if self._preparing is not None and self._preparing.nbytes == nbytes:
                return
            before, self._preparing = self._preparing, None
            if nbytes <= available_memory() // 4:  # a spare must not be what leads to the lack
                self._preparing = _Preparing(nbytes, self._later)
                self._preparing.start()
        if before is not None:
            before.drop()

    # Giving back ----------------------------------------------------------------------------------------

    def give_back(self, block: SharedBlock) -> None:
        """A block that `make` gave. The largest one is kept."""
        with self._lock:
            smaller: SharedBlock | None = block
            if self._own is None or self._own.nbytes < block.nbytes:
                self._own, smaller = block, self._own
        if smaller is not None:
            smaller.close()

    def give_back_shared(self, block: SharedBlock, writers: Collection[str]) -> None:
        """A block that `make_shared` gave."""
        with self._lock:
            before, self._shared = self._shared, (block, frozenset(writers))
        if before is not None:
            before[0].close()
        self._let_go_later()

    def unmap(self, blocks: Sequence[SharedBlock]) -> None:
        """Blocks that `map` gave."""
        files = [_file(block.fd) for block in blocks]
        with self._lock:
            twice = [self._mapped[file] for file in files if file in self._mapped]
            self._mapped.update(zip(files, blocks, strict=True))
        for block in twice:
            block.close()
        if blocks:
            self._let_go_later()

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            own, self._own = self._own, None
            preparing, self._preparing = self._preparing, None
        if own is not None:
            own.close()
        if preparing is not None:
            preparing.drop()
        self._let_go()

    def _let_go_later(self) -> None:
        timer = threading.Timer(self._later, self._let_go)
        timer.daemon = True
        timer.start()

    def _let_go(self) -> None:
        with self._lock:
            blocks = list(self._mapped.values())
            self._mapped.clear()
            if self._shared is not None:
                blocks.append(self._shared[0])
                self._shared = None
        for block in blocks:
            block.close()


class _Preparing(threading.Thread):
    """A block that is made a little later."""

    def __init__(self, nbytes: int, later: float) -> None:
        super().__init__(name="shoal-memory", daemon=True)
        self.nbytes = nbytes
        self._later = later
        self._wanted = threading.Event()
        self._block: SharedBlock | None = None

    def run(self) -> None:
        if not self._wanted.wait(self._later):
            with contextlib.suppress(OSError, NoSpace):  # whoever needs it finds out
                self._block = SharedBlock.create("prepared", self.nbytes, peers_write=True)

    def take(self) -> SharedBlock | None:
        """None if it has not been begun, or could not be made."""
        self._wanted.set()
        self.join()
        return self._block

    def drop(self) -> None:
        if (block := self.take()) is not None:
            block.close()


def _file(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


pool = BlockPool()  # this process's
