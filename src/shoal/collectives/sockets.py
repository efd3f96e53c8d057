"""Exchanges over sockets: reduce-scatter, then all-gather.

Each rank owns a slice of the vector. Published brings to each peer its slice of the sender's partial sums; it
adds up its slice; Reduced brings the sum of the slice to all. With one partial sum each, a worker sends
2 (N - 1) / N of a vector per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives.abstract import AbstractExchange, Outcome, copy_loans
from shoal.collectives.adder import Adder
from shoal.collectives.additions import plan
from shoal.collectives.layout import Loan, Vector, VectorLayout
from shoal.collectives.messages import SlotsPublished
from shoal.collectives.messenger import Laden, Messenger
from shoal.collectives.protocol import ExchangeWork
from shoal.collectives.tree import cover
from shoal.errors import UsageError


def open_sockets(meeting: Messenger, layout: VectorLayout, slots: int) -> AbstractExchange:
    """Make this worker's memory and say where peers' parts go. Collective."""
    exchange = _SocketExchange(meeting, layout, slots)
    meeting.load(meeting.number, exchange)
    return exchange


class _SocketExchange(AbstractExchange):
    """Private memory for everyone's slots, of which only the own slice of the peers' is ever touched."""

    def __init__(self, meeting: Messenger, layout: VectorLayout, slots: int) -> None:
        self._meeting = meeting
        self._number = meeting.number
        self._slots = slots
        self._layout = layout
        self._slices = layout.slices(len(meeting.members), layout.grain)
        # Whole vectors, although of a peer's only the own slice arrives: memory that nobody touches costs
        # nothing, and the same offsets hold everywhere.
        self._memory = [[np.empty(layout.nbytes, np.uint8).data for _ in range(slots)] for _ in meeting.members]
        self._vectors = [[layout.vector(memory) for memory in memories] for memories in self._memory]
        self._result = layout.memory()
        self._total = layout.vector(self._result)
        self._adder = Adder(layout)
        for memory in self._memory[meeting.rank]:
            np.asarray(memory)[:] = 0

    def slot(self, i: int) -> Vector:
        return self._vectors[self._meeting.rank][i]

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        steps = plan(pieces, shares, self._slots)
        inputs = [self._vectors[rank][slot] for rank, slot in steps.inputs]

        def add_slice() -> None:
            self._adder.add(steps.program, inputs, self._total, self._slices[self._meeting.rank])

        sent = self._meeting.traffic.sent
        notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares), add_slice)
        self._meeting.traffic.spared += int((self._meeting.traffic.sent - sent) * (self._layout.inflation - 1))
        return Outcome(self._total, notes)

    def outgoing(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """The peer's slice of this worker's partial sums, or this worker's slice of the total."""
        me = self._meeting.rank
        if not isinstance(message, SlotsPublished):
            return [_cut(self._result, self._slices[me])]
        return [_cut(memory, self._slices[rank]) for memory in self._memory[me][: slots_of(message)]]

    def place(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """Where a peer's part goes. It may be one exchange ahead: what it overwrites then is added up already."""
        if not isinstance(message, SlotsPublished):
            return [_cut(self._result, self._slices[rank])]
        mine = self._slices[self._meeting.rank]
        return [_cut(memory, mine) for memory in self._memory[rank][: slots_of(message)]]

    def close(self) -> None:
        self._meeting.unload(self._number)
        self._memory.clear()
        self._vectors.clear()


def slots_of(message: SlotsPublished) -> int:
    """How many partial sums the sender has."""
    try:
        return len(cover(message.pieces, range(message.first, message.stop)))
    except UsageError:
        return 0  # no such pieces: nothing is taken, and the exchange finds the mismatch


def _cut(memory: memoryview, part: range) -> memoryview:
    return memory[part.start : part.stop]
