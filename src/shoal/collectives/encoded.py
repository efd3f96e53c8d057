"""Exchanges in which slots travel in the form of a codec with residuals: everyone gets everyone's and adds them up.

Published brings all of the sender's slots, encoded. A slice of a slot could not be encoded like a whole one, so there
is none: what a codec leaves of a vector must be small for that to pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives import arrays as packed
from shoal.collectives.abstract import AbstractExchange, Outcome, copy_loans
from shoal.collectives.layout import Array, Loan, Vector, VectorLayout
from shoal.collectives.messages import SlotsPublished
from shoal.collectives.messenger import Laden, Messenger
from shoal.collectives.protocol import ExchangeWork
from shoal.collectives.vector_encoding import VectorEncoding

_ALONE = ((0,),)


def open_encoded(
    meeting: Messenger | None,
    layout: VectorLayout,
    slots: int,
    encoding: VectorEncoding,
    hosts: Sequence[Sequence[int]] = _ALONE,
) -> AbstractExchange:
    """Make this worker's memory and say where peers' slots go. Collective. Without a meeting there is only one."""
    exchange = _EncodedExchange(meeting, layout, slots, encoding, hosts)
    if meeting is not None:
        meeting.load(meeting.number, exchange)
    return exchange


class _EncodedExchange(AbstractExchange):
    """One round; everyone adds up everything for itself. A worker's slots are its pieces."""

    def __init__(
        self,
        meeting: Messenger | None,
        layout: VectorLayout,
        slots: int,
        encoding: VectorEncoding,
        hosts: Sequence[Sequence[int]],
    ) -> None:
        self._meeting = meeting
        self._rank = meeting.rank if meeting is not None else 0
        self._number = meeting.number if meeting is not None else 0
        self._encoding = encoding
        self._nbytes = layout.nbytes
        self._hosts = hosts
        self._vectors = [layout.vector(layout.memory()) for _ in range(slots)]
        # By rank and slot. This worker's own are of the step that goes on.
        members = len(meeting.members) if meeting is not None else 1
        self._encoded = [[encoding.landing() for _ in range(slots)] for _ in range(members)]
        self._totals = [layout.vector(layout.memory()) for _ in range(2)]  # one can be read while the other is written

    def slot(self, i: int) -> Vector:
        return self._vectors[i]

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        self._encoding.residuals.settle(self._meeting, self._hosts, shares, self)
        mine = self._encoded[self._rank]
        for place, (vector, piece) in enumerate(zip(self._vectors, shares[self._rank], strict=False)):
            self._encoding.encode(piece, vector, mine[place])
        self._encoding.residuals.copy(self._meeting, self._hosts, shares)
        notes = [note]
        if self._meeting is not None:
            traffic = self._meeting.traffic
            sent = traffic.sent
            notes = self._meeting.hold(what, note, ExchangeWork(self._number, pieces, shares))
            if len(self._hosts) > 1:  # on one host nothing would have gone over sockets
                members = len(self._meeting.members)
                plain = 2 * (len(self._hosts) - 1) * self._nbytes // members  # two_level.py: of this worker
                traffic.spared += max(0, plain - (traffic.sent - sent))
        self._totals.reverse()
        self._add(shares, self._totals[0])
        return Outcome(self._totals[0], notes)

    def _add(self, shares: tuple[range, ...], total: Vector) -> None:
        """All slots in their order: that depends on nothing but their number."""
        for section in total[:3]:
            section[:] = 0
        places = {
            piece: self._encoded[rank][place] for rank, held in enumerate(shares) for place, piece in enumerate(held)
        }
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            for _, encoded in sorted(places.items()):
                self._encoding.add(encoded, total)

    def outgoing(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """All of this worker's slots."""
        if not isinstance(message, SlotsPublished):
            return ()
        return _views(self._encoded[self._rank][: message.stop - message.first])

    def place(self, rank: int, message: Laden) -> Sequence[memoryview]:
        """Where a peer's go. It may be one exchange ahead: what it overwrites then is added up already."""
        if not isinstance(message, SlotsPublished) or not 0 <= message.stop - message.first <= len(self._vectors):
            return ()
        return _views(self._encoded[rank][: message.stop - message.first])

    def close(self) -> None:
        if self._meeting is not None:
            self._meeting.unload(self._number)
        self._encoded.clear()
        self._vectors.clear()


def _views(encoded: Sequence[Sequence[Array]]) -> list[memoryview]:
    return [packed.view(array) for arrays in encoded for array in arrays]
