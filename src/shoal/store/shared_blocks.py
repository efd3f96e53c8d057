"""Tensors between two processes of one host: through memory that the receiver reads where the sender has written it.

    sender ──Share──▶ receiver       here is a block; its descriptor is beside this
    sender ──Laid───▶ receiver       what the next message brings lies in that block
    sender ◀─Return── receiver       nobody reads it any more

A block is lent with a message and comes back when the last array in it is gone at the receiver. Small tensors, and
those of a receiver that gives nothing back, go over the connection. A new block takes several times as long as what is
copied into it: when a receiver is gone, the blocks that it had given back are kept for the others, which will get more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import BadFrame, NoSpace
from shoal.store.values.tensors import Array, ArrayShape, arrays_in, offsets
from shoal.wire.memory import SharedBlock
from shoal.wire.messages import Message

SMALL = 64 << 10  # bytes; less goes over the connection
GRAIN = 256 << 10  # bytes; blocks are of so many or a multiple, so that shards of nearly one size can share them
MOST = 64  # blocks for one receiver; there are as many as were ever on their way at a time


class Share(Message, frozen=True):
    """Sender -> receiver: a block of this size, under this number. Its descriptor is beside this."""

    block: int
    nbytes: int


class Laid(Message, frozen=True):
    """Sender -> receiver: the tensors of the next message lie in this block."""

    block: int


class Return(Message, frozen=True):
    """Receiver -> sender: the block may be written again."""

    block: int


@dataclass(slots=True)
class _Lent:
    block: SharedBlock
    free: bool


class Outgoing:
    """The blocks in which one process lays tensors for one receiver."""

    def __init__(self, share: Callable[[Share, int], None], spare: list[SharedBlock]) -> None:
        """`share` sends the message with a descriptor beside it. `spare`: blocks that no receiver has, for all."""
        self._share = share
        self._spare = spare
        self._blocks: list[_Lent] = []

    def lay(self, arrays: Sequence[Array]) -> Laid | None:
        """Copies the arrays to where the receiver can read them. None: they are to go over the connection."""
        places = offsets(array.nbytes for array in arrays)
        if places[-1] < SMALL:
            return None
        number = self._free(places[-1])
        if number is None:
            return None
        memory = self._blocks[number].block.array("uint8", 0, places[-1])
        for array, place in zip(arrays, places, strict=False):
            np.copyto(memory[place : place + array.nbytes].view(array.dtype), array.reshape(-1))
        self._blocks[number].free = False
        return Laid(number)

    def returned(self, message: Return) -> None:
        if 0 <= message.block < len(self._blocks):
            self._blocks[message.block].free = True

    def close(self) -> None:
        for lent in self._blocks:
            if lent.free and len(self._spare) < MOST:
                self._spare.append(lent.block)
            else:
                lent.block.close()

    def _free(self, nbytes: int) -> int | None:
        for number, lent in enumerate(self._blocks):
            if lent.free and lent.block.nbytes >= nbytes:
                return number
        if len(self._blocks) == MOST:
            return None
        block = self._take_spare(nbytes)
        if block is None:
            try:
                block = SharedBlock.create("shoal-store", -(-nbytes // GRAIN) * GRAIN)
            except (NoSpace, OSError):  # no memory or no descriptor is left: the connection needs neither
                return None
        self._blocks.append(_Lent(block, True))
        self._share(Share(len(self._blocks) - 1, block.nbytes), block.fd)
        return len(self._blocks) - 1

    def _take_spare(self, nbytes: int) -> SharedBlock | None:
        for place, block in enumerate(self._spare):
            if nbytes <= block.nbytes <= 2 * nbytes:
                return self._spare.pop(place)
        return None


class Incoming:
    """The blocks of one sender, as its receiver sees them."""

    def __init__(self, give_back: Callable[[Return], None]) -> None:
        """`give_back` is called by whichever thread lets go of the last array of a block."""
        self._give_back = give_back
        self._blocks: dict[int, SharedBlock] = {}
        self._laid: int | None = None  # where the next message's tensors lie

    def open_block(self, share: Share, fd: int) -> None:
        if share.block in self._blocks or len(self._blocks) >= MOST:
            raise BadFrame(f"block {share.block} is shared twice, or is one too many")
        self._blocks[share.block] = SharedBlock.open(fd, share.nbytes)

    def heed(self, laid: Laid) -> None:
        if laid.block not in self._blocks:
            raise BadFrame(f"tensors are said to lie in block {laid.block}, which was never shared")
        self._laid = laid.block

    @property
    def expects(self) -> bool:
        """Whether the next message's tensors lie in a block."""
        return self._laid is not None

    def arrays(self, shapes: Sequence[ArrayShape]) -> list[Array]:
        """What came with the message before which `heed` was called."""
        assert self._laid is not None
        number, self._laid = self._laid, None
        block = self._blocks[number]
        room = offsets(shape.nbytes for shape in shapes)[-1]
        if room > block.nbytes:
            raise BadFrame(f"{room:,} bytes are expected in a block of {block.nbytes:,}")
        memory = block.array("uint8", 0, room)
        weakref.finalize(memory, self._give_back, Return(number)).atexit = False
        return arrays_in(memory, shapes)

    def close(self) -> None:
        """Arrays that are still read stay readable."""
        for block in self._blocks.values():
            block.close()
