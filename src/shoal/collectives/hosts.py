"""Exchanges between workers of several hosts of which some have more than one worker.

Each worker's slots lie in memory that its host's workers share, and so does the result. What crosses to other hosts
travels beside Summed and Reduced, from where it lies into place. two_level.py says who adds what and what crosses;
protocol.py when. So no memory is written while somebody still reads it:

    slots            until all have reduced: by then all sums that were made of them have arrived
    other hosts'     are read before this worker says Reduced, and come anew only after it
    the result       is written anew when all have come to the next exchange, and so have done with it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.collectives.abstract import AbstractExchange, Outcome, copy_loans
from shoal.collectives.adder import Adder
from shoal.collectives.additions import plan
from shoal.collectives.layout import PAGE, Loan, Vector, VectorLayout, round_up
from shoal.collectives.messages import Reduced, Summed
from shoal.collectives.messenger import Laden, Messenger
from shoal.collectives.protocol import ExchangeWork
from shoal.collectives.shared import share_memory
from shoal.collectives.transports import AbstractTransport, transports
from shoal.collectives.two_level import NodeSum, Operand, TwoLevelSplit, two_level_additions
from shoal.wire.memory import SharedBlock
from shoal.wire.pool import pool


def open_hosts(
    meeting: Messenger, layout: VectorLayout, slots: int, hosts: Sequence[Sequence[int]]
) -> AbstractExchange:
    """Make this worker's memory, map its neighbours', and say where the other hosts' parts go. Collective."""
    split = TwoLevelSplit(hosts, layout.nbytes, layout.grain)
    stride = round_up(layout.nbytes, PAGE)
    buckets, result = share_memory(meeting, split.neighbours(meeting.rank), stride * slots, stride)
    assert result is not None
    exchange = _HostsExchange(meeting, layout, slots, split, _HostMemory(layout, slots, buckets, result))
    meeting.load(meeting.number, exchange)
    return exchange


class _HostMemory:
    """What the workers of this host share."""

    def __init__(
        self, layout: VectorLayout, slots: int, buckets: Mapping[int, SharedBlock], result: SharedBlock
    ) -> None:
        stride = round_up(layout.nbytes, PAGE)
        self.slots = {
            rank: [bucket.view()[stride * slot : stride * slot + layout.nbytes] for slot in range(slots)]
            for rank, bucket in buckets.items()
        }
        self.result = result.view()[: layout.nbytes]
        self._buckets = dict(buckets)
        self._result = result

    def close(self, me: int, writers: Sequence[str]) -> None:
        """Give it back. `writers` are the ids of all who could write to the result."""
        self.slots.clear()
        if not self._buckets:
            return
        made_result = me == min(self._buckets)
        # Peers of this view have left it before this worker's next exchange is opened: its bucket may be written again.
        pool.give_back(self._buckets.pop(me))
        if made_result:
            pool.give_back_shared(self._result, writers)
        pool.unmap([*self._buckets.values(), *([] if made_result else [self._result])])
        self._buckets.clear()


class _HostsExchange(AbstractExchange):
    """Four rounds: sum on the host, cross, reduce, cross back."""

    def __init__(
        self, meeting: Messenger, layout: VectorLayout, slots: int, split: TwoLevelSplit, memory: _HostMemory
    ) -> None:
        self._meeting = meeting
        self._number = meeting.number
        self._layout = layout
        self._slots = slots
        self._split = split
        self._memory = memory
        self._transports: dict[int, AbstractTransport] = transports(split.hosts, meeting.rank)
        self._adder = Adder(layout)
        self._total = layout.vector(memory.result)
        self._sums: list[memoryview] = []  # of this step, for other hosts
        # Whole vectors, of which only what this worker adds up or owns is touched: the rest costs nothing.
        self._whole: dict[tuple[int, int], memoryview] = {}  # sums, by host and number

    def slot(self, i: int) -> Vector:
        return self._layout.vector(self._memory.slots[self._meeting.rank][i])

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        slots = plan(pieces, shares, self._slots)  # checks that no rank has more partial sums than slots
        me = self._meeting.rank
        steps = two_level_additions(pieces, shares, self._split.hosts, self._split.host(me))

        def sum_up() -> int:
            self._sums = [self._sum(number, each) for number, each in enumerate(steps.sums)]
            return len(self._sums)

        def add_own() -> None:
            inputs = [self._vector(operand) for operand in steps.total.inputs]
            self._adder.add(steps.total.program, inputs, self._total, self._split.owned(me))

        sent = self._meeting.traffic.sent
        notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares), add_own, sum_up)
        self._meeting.traffic.spared += int((self._meeting.traffic.sent - sent) * (self._layout.inflation - 1))
        mine = sum(owner == me for owner, _ in slots.inputs)
        self._meeting.traffic.shared += mine * self._layout.nbytes
        return Outcome(self._total, notes)

    def _sum(self, number: int, made: NodeSum) -> memoryview:
        """One of the host's sums, as far as this worker stands for it; in place, if a neighbour has it already."""
        if not made.program:
            return self._operand(made.inputs[0])
        memory = self._sum_of(self._split.host(self._meeting.rank), number)
        inputs = [self._vector(operand) for operand in made.inputs]
        for part in self._split.stands_for(self._meeting.rank):
            self._adder.add(made.program, inputs, self._layout.vector(memory), part)
        return memory

    def _vector(self, operand: Operand) -> Vector:
        return self._layout.vector(self._operand(operand))

    def _operand(self, operand: Operand) -> memoryview:
        if operand.rank is None:
            return self._sum_of(operand.host, operand.number)
        return self._memory.slots[operand.rank][operand.number]

    def _sum_of(self, host: int, number: int) -> memoryview:
        """Where a host's sum is made, or arrives."""
        if (host, number) not in self._whole:
            self._whole[host, number] = np.empty(self._layout.nbytes, np.uint8).data
        return self._whole[host, number]

    def outgoing(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """What crosses to this rank: of the host's sums what it owns, or of the total what it stands for there."""
        me = self._meeting.rank
        if isinstance(message, Summed):
            return self._transports[rank].beside(_cuts(self._sums, self._split.crosses(me, rank)))
        if isinstance(message, Reduced):
            return self._transports[rank].beside(_cuts([self._memory.result], self._split.crosses(rank, me)))
        return ()

    def place(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """Where it goes."""
        me, host = self._meeting.rank, self._split.host(rank)
        if isinstance(message, Summed) and 0 <= message.sums <= self._slots * len(self._split.hosts[host]):
            arriving = [self._sum_of(host, number) for number in range(message.sums)]
            return self._transports[rank].beside(_cuts(arriving, self._split.crosses(rank, me)))
        if isinstance(message, Reduced):
            return self._transports[rank].beside(_cuts([self._memory.result], self._split.crosses(me, rank)))
        return ()

    def close(self) -> None:
        self._meeting.unload(self._number)
        self._sums.clear()
        self._whole.clear()
        me = self._meeting.rank
        self._memory.close(me, [self._meeting.members[rank] for rank in self._split.neighbours(me)])


def _cuts(memories: Sequence[memoryview], part: range) -> list[memoryview]:
    return [memory[part.start : part.stop] for memory in memories] if part else []
