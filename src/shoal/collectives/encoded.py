"""Exchanges in which partial sums travel in the form of a codec: everyone gets everyone's, and adds up for itself.

Published brings all of the sender's partial sums, encoded. A slice of a sum could not be encoded like a whole one, so
there is none: what a codec leaves of a vector must be smaller than 2 / N of it to pay among N workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives import arrays as packed
from shoal.collectives.abstract import AbstractExchange, Outcome, copy_loans
from shoal.collectives.additions import plan
from shoal.collectives.layout import Array, Loan, Vector, VectorLayout
from shoal.collectives.messages import SlotsPublished
from shoal.collectives.messenger import Laden, Messenger
from shoal.collectives.protocol import ExchangeWork
from shoal.collectives.sockets import slots_of
from shoal.collectives.tree import Add, cover
from shoal.collectives.vector_encoding import VectorEncoding


def open_encoded(meeting: Messenger, layout: VectorLayout, slots: int, encoding: VectorEncoding) -> AbstractExchange:
    """Make this worker's memory and say where peers' partial sums go. Collective."""
    exchange = _EncodedExchange(meeting, layout, slots, encoding)
    meeting.load(meeting.number, exchange)
    return exchange


class _EncodedExchange(AbstractExchange):
    """One round; everyone adds up everything for itself."""

    def __init__(self, meeting: Messenger, layout: VectorLayout, slots: int, encoding: VectorEncoding) -> None:
        self._meeting = meeting
        self._number = meeting.number
        self._layout = layout
        self._encoding = encoding
        self._vectors = [layout.vector(layout.memory()) for _ in range(slots)]
        # By rank and slot. This worker's own are of the step that goes on.
        self._encoded = [[encoding.landing() for _ in range(slots)] for _ in meeting.members]
        self._total = layout.vector(layout.memory())
        self._registers = [self._total]

    def slot(self, i: int) -> Vector:
        return self._vectors[i]

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        steps = plan(pieces, shares, len(self._vectors))
        me = self._meeting.rank
        mine = self._vectors[: len(cover(pieces, shares[me]))]
        self._encoded[me] = [self._encoding.encode(slot, vector) for slot, vector in enumerate(mine)]
        notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares))
        self._encoding.commit()
        self._add(steps.program, [self._encoded[rank][slot] for rank, slot in steps.inputs])
        return Outcome(self._total, notes)

    def _add(self, program: Sequence[Add], inputs: Sequence[Sequence[Array]]) -> None:
        """The tree's additions. The left operand is an input, or in the register that is written anyway."""
        if not program:
            self._encoding.write(inputs[0], self._total)
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            for left, right, into in program:
                total = self._register(into)
                if left >= 0:
                    self._encoding.write(inputs[left], total)
                if right >= 0:
                    self._encoding.add(inputs[right], total)
                else:
                    for one, other in zip(total[:3], self._register(right)[:3], strict=True):
                        np.add(one, other, out=one)

    def _register(self, operand: int) -> Vector:
        while len(self._registers) <= ~operand:
            self._registers.append(self._layout.vector(self._layout.memory()))
        return self._registers[~operand]

    def outgoing(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """All of this worker's partial sums."""
        return _views(self._encoded[self._meeting.rank]) if isinstance(message, SlotsPublished) else ()

    def place(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """Where a peer's go. It may be one exchange ahead: what it overwrites then is added up already."""
        return _views(self._encoded[rank][: slots_of(message)]) if isinstance(message, SlotsPublished) else ()

    def close(self) -> None:
        self._meeting.unload(self._number)
        self._encoded.clear()
        self._vectors.clear()


def _views(encoded: Sequence[Sequence[Array]]) -> list[memoryview]:
    return [packed.view(array) for arrays in encoded for array in arrays]
