"""Exchanges between workers of one host, over shared memory.

Each worker's bucket holds its slots; only it can write there, its peers read. One result block, made by rank
0, is written by all, each its own slice. A large vector takes two rounds: when all have published, each adds
up its slice of everyone's slots into the result; when all have reduced, everyone reads the result in place. A
small one takes one: when all have published, everyone adds up everything for itself, and the slots take turns,
so that a fast worker does not write into what a slow one still reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives.abstract import AbstractExchange, Outcome, copy_loans
from shoal.collectives.adder import Adder
from shoal.collectives.additions import Additions, plan
from shoal.collectives.layout import PAGE, Loan, Vector, VectorLayout, round_up
from shoal.collectives.messenger import Messenger
from shoal.collectives.protocol import ExchangeWork
from shoal.wire.memory import SharedBlock, close_all
from shoal.wire.pool import pool

SMALL = 256 << 10  # bytes of all peers' vectors up to which a second round costs more than adding everything


def open_shared(meeting: Messenger, layout: VectorLayout, slots: int) -> AbstractExchange:
    """Make this worker's bucket, and map everyone else's. Collective."""
    small = layout.nbytes * (len(meeting.members) - 1) <= SMALL
    turns = 2 if small else 1
    stride = round_up(layout.nbytes, PAGE)
    everyone = range(len(meeting.members))
    mapped, result = share_memory(meeting, everyone, stride * slots * turns, 0 if small else stride)
    buckets = [mapped[rank] for rank in everyone]
    vectors = [
        [[layout.vector(bucket.view(), stride * (turn * slots + slot)) for slot in range(slots)] for bucket in buckets]
        for turn in range(turns)
    ]
    if result is None:
        total = layout.vector(layout.memory())
        return _SmallExchange(meeting, layout, slots, buckets, vectors, total)
    if meeting.rank <= 1:
        pool.prepare(stride)  # for the result in the next view: one of these two will make it
    return _LargeExchange(meeting, layout, slots, [*buckets, result], vectors[0], layout.vector(result.view()))


def prepare_bucket(layout: VectorLayout) -> None:
    """Take the memory for a bucket of one slot, before it is needed."""
    pool.give_back(pool.make("a newcomer's gradients", round_up(layout.nbytes, PAGE)))


def share_memory(
    meeting: Messenger, ranks: Sequence[int], bucket: int, result: int
) -> tuple[dict[int, SharedBlock], SharedBlock | None]:
    """The buckets of these ranks, which are on one host, and one block for the result if it is to have any bytes.

    All of them, or none. Collective among the ranks; the first of them makes the result's block.
    """
    first = ranks[0]
    mapped: dict[int, list[SharedBlock]] = {meeting.rank: []}
    handed: dict[int, list[int]] = {}
    try:
        mine = mapped[meeting.rank]
        mine.append(pool.make(f"{meeting.members[meeting.rank]}'s gradients", bucket))
        if result and meeting.rank == first:
            mine.append(pool.make_shared("the summed gradients", result, [meeting.members[rank] for rank in ranks]))
        expected = {rank: 2 if result and rank == first else 1 for rank in ranks if rank != meeting.rank}
        handed = meeting.hand("opening shared memory", [block.fd for block in mine], expected)
        for rank, fds in handed.items():
            mapped[rank] = [pool.map(fds.pop(0), bucket)]
            if fds:
                mapped[rank].append(pool.map(fds.pop(0), result, writable=True))
    except BaseException:
        for fds in handed.values():
            close_all(fds)
        for blocks in mapped.values():
            _close(blocks)
        raise
    return {rank: mapped[rank][0] for rank in ranks}, mapped[first][1] if result else None


class _LargeExchange(AbstractExchange):
    """Two rounds; every rank adds up its slice of the result."""

    def __init__(
        self,
        meeting: Messenger,
        layout: VectorLayout,
        slots: int,
        blocks: list[SharedBlock],
        vectors: list[list[Vector]],
        total: Vector,
    ) -> None:
        self._meeting = meeting
        self._number = meeting.number
        self._slots = slots
        self._blocks = blocks
        self._vectors = vectors
        self._total = total
        self._adder = Adder(layout)
        self._nbytes = layout.nbytes
        # Page aligned: no two workers ever write to the same page, let alone the same cache line.
        self._part = layout.slices(len(meeting.members), PAGE)[meeting.rank]
        self._own = {run.section: run for run in layout.runs(self._part)}
        self._lent: list[Loan] = []

    def slot(self, i: int) -> Vector:
        return self._vectors[self._meeting.rank][i]

    def lend(self, loans: Sequence[Loan]) -> None:
        """Peers read all but this worker's own slice, which it adds up from where it lies."""
        slot = self.slot(0)
        for loan in loans:
            section, lo, hi = self._own.get(loan.section, (loan.section, loan.hi, loan.hi))
            for start, stop in ((loan.lo, min(lo, loan.hi)), (max(hi, loan.lo), loan.hi)):
                if start < stop:
                    np.copyto(slot[section][start:stop], loan.array[start - loan.lo : stop - loan.lo])
            if max(lo, loan.lo) < min(hi, loan.hi):
                self._lent.append(loan)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        steps = plan(pieces, shares, self._slots)
        inputs = [self._vectors[rank][slot] for rank, slot in steps.inputs]

        mine = steps.inputs.index((self._meeting.rank, 0)) if self._lent else 0

        def add_slice() -> None:
            self._adder.add(steps.program, inputs, self._total, self._part, mine, self._lent)

        notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares), add_slice)
        self._lent = []
        self._meeting.traffic.shared += _laid(steps, self._meeting.rank) * self._nbytes
        return Outcome(self._total, notes)

    def close(self) -> None:
        self._vectors = []  # they hold the memory
        if not self._blocks:
            return
        # Peers of this view have left it before this worker's next exchange is opened: its bucket may be written again.
        pool.give_back(self._blocks.pop(self._meeting.rank))
        if self._meeting.rank == 0:
            pool.give_back_shared(self._blocks.pop(), self._meeting.members)  # the result
        pool.unmap(self._blocks)
        self._blocks = []


class _SmallExchange(AbstractExchange):
    """One round; everyone adds up everything for itself."""

    def __init__(
        self,
        meeting: Messenger,
        layout: VectorLayout,
        slots: int,
        blocks: list[SharedBlock],
        turns: list[list[list[Vector]]],
        total: Vector,
    ) -> None:
        self._meeting = meeting
        self._number = meeting.number
        self._slots = slots
        self._blocks = blocks
        self._turns = turns
        self._total = total
        self._adder = Adder(layout)
        self._nbytes = layout.nbytes

    def slot(self, i: int) -> Vector:
        return self._turns[0][self._meeting.rank][i]

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        steps = plan(pieces, shares, self._slots)
        notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares))
        vectors = self._turns[0]
        self._meeting.traffic.shared += _laid(steps, self._meeting.rank) * self._nbytes
        self._adder.add(steps.program, [vectors[rank][slot] for rank, slot in steps.inputs], self._total)
        # This turn's slots are written again after the next commit; by then everyone has come to that
        # exchange, and so is done with adding up this one.
        self._turns.reverse()
        return Outcome(self._total, notes)

    def close(self) -> None:
        self._turns = []  # they hold the memory
        _close(self._blocks)


def _laid(steps: Additions, rank: int) -> int:
    """How many partial sums a rank has laid where the others read them."""
    return sum(owner == rank for owner, _ in steps.inputs)


def _close(blocks: list[SharedBlock]) -> None:
    while blocks:
        blocks.pop().close()
