"""Tensors from one worker straight to another, within an act: what crosses the border of a stage.

On a host a tensor is written once, into a block of memory that the receiver maps, and a message says that it is there;
the block's descriptor travels with the first message that names it. A block belongs to a name (which tensor of which
piece) and is written again when the same name is sent again: by then an exchange of all has committed in between, so
its receivers are done with it. Between hosts the tensor travels beside the message.

Messages of a pair of workers come in the order in which they were sent, and every tensor that is sent is received in
the same act: after it, the connections are free for the next exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives.arrays import ArraySpec, contiguous, specs, view
from shoal.collectives.layout import LINE, Array, round_up
from shoal.collectives.messages import Passed
from shoal.collectives.messenger import Messenger
from shoal.errors import BadFrame
from shoal.wire.memory import SharedBlock, close_all
from shoal.wire.messages import Message

Name = tuple[int, ...]


class TensorPassing:
    """One worker's part: what it sends, and what has arrived for it."""

    def __init__(self, meeting: Messenger) -> None:
        self._meeting = meeting
        self._own: dict[Name, tuple[int, SharedBlock]] = {}  # by name: the block's number, and the block
        self._blocks = 0
        self._known: set[tuple[int, int]] = set()  # rank and number of a block that it has
        self._mapped: dict[tuple[int, int], SharedBlock] = {}  # the same, of others' blocks
        self._arrived: dict[tuple[int, Name], list[Array]] = {}
        self._landing: dict[int, list[Array]] = {}  # by rank: where the message on its way puts its arrays

    def send(self, ranks: Sequence[int], name: Name, arrays: Sequence[Array]) -> None:
        """To these ranks, which all `receive` it. The arrays stay as they are until the act is over."""
        arrays = contiguous(arrays)
        listed = specs(arrays)
        near = [rank for rank in ranks if self._meeting.is_near(rank)]
        if near:
            number, block = self._write(name, arrays)
            for rank in near:
                known = (rank, number) in self._known
                self._known.add((rank, number))
                message = Passed(self._meeting.view, name, tuple(listed), number, block.nbytes)
                self._meeting.say_to(rank, message, fds=[] if known else [block.fd])
        for rank in ranks:
            if rank not in near:
                message = Passed(self._meeting.view, name, tuple(listed))
                self._meeting.say_to(rank, message, [view(array) for array in arrays if array.size])

    def receive(self, rank: int, name: Name, what: str) -> list[Array]:
        """What a rank sends under this name. Read it before the act is over."""
        while (rank, name) not in self._arrived:
            message, fds = self._meeting.hear_from(rank, what, lambda said: self._place(rank, said))
            if not isinstance(message, Passed):
                close_all(fds)
                raise BadFrame(f"{what}: {self._meeting.members[rank]} sent {type(message).__name__} before its tensor")
            self._arrived[rank, message.name] = self._take(rank, message, fds)
        return self._arrived.pop((rank, name))

    def close(self) -> None:
        for block in (*(block for _, block in self._own.values()), *self._mapped.values()):
            block.close()
        self._own, self._mapped = {}, {}

    def _write(self, name: Name, arrays: Sequence[Array]) -> tuple[int, SharedBlock]:
        sizes = [round_up(array.nbytes, LINE) for array in arrays]
        number, block = self._own.get(name, (0, None))
        if block is None or block.nbytes < sum(sizes):
            if block is not None:
                block.close()
            self._blocks += 1
            number, block = self._blocks, SharedBlock.create("a stage's tensors", max(LINE, sum(sizes)))
            self._own[name] = (number, block)
        offset = 0
        for array, size in zip(arrays, sizes, strict=True):
            place = block.array(np.uint8, offset, array.nbytes)
            np.copyto(place, array.reshape(-1).view(np.uint8))
            offset += size
        return number, block

    def _place(self, rank: int, message: Message) -> Sequence[memoryview]:
        """For what travels beside a message."""
        if not isinstance(message, Passed):
            return ()
        self._landing[rank] = [spec.empty() for spec in message.specs]
        return [view(array) for array in self._landing[rank] if array.size]

    def _take(self, rank: int, message: Passed, fds: list[int]) -> list[Array]:
        if not message.block:
            landed = self._landing.pop(rank, None)
            return landed if landed is not None else [spec.empty() for spec in message.specs]
        key = (rank, message.block)
        if fds:
            self._mapped[key] = SharedBlock.open(fds.pop(0), message.nbytes)
            close_all(fds)
        if key not in self._mapped:
            raise BadFrame(f"{self._meeting.members[rank]} names memory that it has not handed over")
        return _views(self._mapped[key], message.specs)


def _views(block: SharedBlock, listed: Sequence[ArraySpec]) -> list[Array]:
    found, offset = [], 0
    for spec in listed:
        like = spec.empty()
        if offset + like.nbytes > block.nbytes:
            raise BadFrame("a peer's tensors are larger than the memory that it has handed over")
        found.append(block.array(like.dtype, offset, like.size).reshape(like.shape))
        offset += round_up(like.nbytes, LINE)
    return found
