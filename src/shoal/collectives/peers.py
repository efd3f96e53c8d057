"""A group of two workers or more."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import msgspec
import numpy as np

from shoal.collectives import arrays as packed
from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Result
from shoal.collectives.alone import Alone
from shoal.collectives.arrays import ArraySpec
from shoal.collectives.encoded import open_encoded
from shoal.collectives.layout import Array, VectorLayout
from shoal.collectives.messenger import Messenger
from shoal.collectives.passing import TensorPassing
from shoal.collectives.residuals import Residuals
from shoal.collectives.shared import open_shared
from shoal.collectives.sockets import open_sockets
from shoal.collectives.vector_encoding import VectorEncoding
from shoal.errors import Diverged, UsageError
from shoal.wire.memory import SharedBlock

Opener = Callable[[Messenger, VectorLayout, int], AbstractExchange]


class PeerGroup(AbstractGroup):
    """Two workers or more, each connected to each. `opener` is how their vectors move as they are."""

    def __init__(
        self,
        meeting: Messenger,
        opener: Opener,
        hosts: Sequence[Sequence[int]] | None = None,
        owns: bool = True,
    ) -> None:
        """`hosts`: the ranks that share memory with each other; None: nobody does. `owns`: the connections are this
        group's own, and go with it.
        """
        self._meeting = meeting
        self._opener = opener
        self._hosts = hosts or [(rank,) for rank in range(len(meeting.members))]
        self._neighbours = tuple(next(ranks for ranks in self._hosts if meeting.rank in ranks))
        self._owns = owns
        self._passing = TensorPassing(meeting)

    @property
    def rank(self) -> int:
        return self._meeting.rank

    @property
    def members(self) -> tuple[str, ...]:
        return self._meeting.members

    def gather(self, what: str, value: bytes) -> list[bytes]:
        return self._meeting.hold(what, value)

    def broadcast(self, what: str, arrays: Sequence[Array]) -> None:
        notes = self._meeting.hold(what, msgspec.msgpack.encode(packed.specs(arrays)))
        everyones = [msgspec.msgpack.decode(note, type=list[ArraySpec]) for note in notes]
        for member, theirs in zip(self.members, everyones, strict=True):
            _check_same(what, self.members[0], everyones[0], member, theirs)
        if self.rank == 0:
            views = [packed.view(array) for array in packed.contiguous(arrays)]
            self._meeting.ship(what, dict.fromkeys(range(1, self.size), views), {})
            return
        # Arrays that don't lie in one run get a copy's content; the others are written by the socket itself.
        landing = packed.contiguous(arrays)
        self._meeting.ship(what, {}, {0: [packed.view(array) for array in landing]})
        for array, landed in zip(arrays, landing, strict=True):
            if landed is not array:
                np.copyto(array, landed)

    def gather_rows(self, what: str, arrays: Sequence[Array]) -> list[list[Array]]:
        notes = self._meeting.hold(what, msgspec.msgpack.encode(packed.specs(arrays)))
        rows = [
            list(arrays)
            if rank == self.rank
            else [spec.empty() for spec in msgspec.msgpack.decode(note, type=list[ArraySpec])]
            for rank, note in enumerate(notes)
        ]
        mine = [packed.view(array) for array in packed.contiguous(arrays)]
        peers = [rank for rank in range(self.size) if rank != self.rank]
        self._meeting.ship(
            what,
            dict.fromkeys(peers, mine),
            {rank: [packed.view(array) for array in rows[rank]] for rank in peers},
        )
        return rows

    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        if self.rank == 0:
            if parts is None or len(parts) != self.size:
                raise UsageError(f"{what}: rank 0 must give one part to each of {self.size} workers")
            word = msgspec.msgpack.encode((header, [packed.specs(part) for part in parts]))
            self._meeting.hold(what, word)
            sends = {
                rank: [packed.view(array) for array in packed.contiguous(parts[rank])] for rank in range(1, self.size)
            }
            self._meeting.ship(what, sends, {})
            return header, list(parts[0])
        word = self._meeting.hold(what, b"")[0]
        header, everyones = msgspec.msgpack.decode(word, type=tuple[bytes, list[list[ArraySpec]]])
        part = [spec.empty() for spec in everyones[self.rank]]
        self._meeting.ship(what, {}, {0: [packed.view(array) for array in part]})
        return header, part

    def pass_on(self, what: str, giver: int, takers: Set[int], given: Result | None) -> Result | None:
        word = b""
        if given is not None:
            word = msgspec.msgpack.encode((given.values, packed.specs(given.arrays)))
        word = self._meeting.hold(what, word)[giver]
        if given is not None:
            views = [packed.view(array) for array in packed.contiguous(given.arrays)]
            self._meeting.ship(what, dict.fromkeys(takers, views), {})
        if self.rank not in takers:
            return None
        values, specs = msgspec.msgpack.decode(word, type=tuple[list[bytes], list[ArraySpec]])
        arrays = [spec.empty() for spec in specs]
        self._meeting.ship(what, {}, {giver: [packed.view(array) for array in arrays]})
        return Result(values, arrays)

    def among(self, ranks: Sequence[int]) -> AbstractGroup:
        if len(ranks) == 1:
            return Alone(self.members[self.rank])
        return PeerGroup(self._meeting.among(ranks), self._opener_among(ranks), owns=False)

    def _opener_among(self, ranks: Sequence[int]) -> Opener:
        """All of one host share memory; others use sockets."""
        near = all(rank == self.rank or self._meeting.is_near(rank) for rank in ranks)
        return open_shared if near else open_sockets

    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[Array]) -> None:
        self._passing.send(ranks, name, arrays)

    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[Array]:
        return self._passing.receive(rank, name, what)

    def flush(self, what: str) -> None:
        self._meeting.flush(what)

    def open(self, layout: VectorLayout, slots: int, encoding: VectorEncoding | None = None) -> AbstractExchange:
        if slots < 1:
            raise UsageError(f"an exchange needs at least 1 slot, not {slots}")
        what = "opening an exchange"
        wanted = (layout.f32, layout.f64, layout.i64, layout.rounded, layout.form, slots)
        notes = self._meeting.hold(what, msgspec.msgpack.encode(wanted))
        for member, note in zip(self.members, notes, strict=True):
            theirs = msgspec.msgpack.decode(note, type=tuple[int, int, int, int, str, int])
            if theirs != wanted:
                raise Diverged(
                    f"{what}: {self.members[self.rank]} wants (f32, f64, i64, rounded, form, slots) = {wanted}, "
                    f"{member} {theirs}"
                )
        if encoding is not None:
            return open_encoded(self._meeting, layout, slots, encoding, self._hosts)
        return self._opener(self._meeting, layout, slots)

    def settle(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        kept.settle(self._meeting, self._hosts, shares, self)

    def copy(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        kept.copy(self._meeting, self._hosts, shares)

    @property
    def neighbours(self) -> tuple[int, ...]:
        return self._neighbours

    def hand_block(self, what: str, giver: int, block: SharedBlock | None, nbytes: int) -> SharedBlock:
        if block is not None:
            self._meeting.hand(what, [block.fd], {rank: 0 for rank in self._neighbours if rank != giver})
            return block
        (fd,) = self._meeting.hand(what, [], {giver: 1})[giver]
        return SharedBlock.open(fd, nbytes, writable=True)

    def close(self) -> None:
        self._passing.close()
        if self._owns:
            self._meeting.close()


def _check_same(what: str, chief: str, expected: Sequence[ArraySpec], member: str, theirs: Sequence[ArraySpec]) -> None:
    if len(expected) != len(theirs):
        raise Diverged(f"{what}: {chief} has {len(expected)} arrays, {member} has {len(theirs)}")
    for i, (one, other) in enumerate(zip(expected, theirs, strict=True)):
        if one != other:
            raise Diverged(f"{what}: array {i} of {chief} is {one}, of {member} it is {other}")
