"""What the rooms above see of a group of workers. All verbs but `close` are collective: every rank calls the
same ones in the same order with the same `what`, or all learn that they did not (Diverged).

Every wait has the run's stall deadline: PeerTimeout names who did not come, PeerClosed who is gone, and what
the control plane knows about the end of the run (RunEnded) comes before both. A group belongs to one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from shoal.collectives.layout import Array, Loan, Vector, VectorLayout
from shoal.collectives.residuals import Residuals
from shoal.collectives.vector_encoding import VectorEncoding
from shoal.wire.memory import SharedBlock


class Outcome(NamedTuple):
    """A committed exchange: the sum over all pieces, read in place, and everyone's notes by rank."""

    total: Vector
    notes: list[bytes]


class Result(NamedTuple):
    """What something that is done together has given, as it can be passed on: small values, and arrays."""

    values: list[bytes]
    arrays: list[Array]


class AbstractExchange(ABC):
    """Memory in which the workers of a group add up vectors of one layout, step after step."""

    @abstractmethod
    def slot(self, i: int) -> Vector:
        """Where this worker writes the sum of its i-th cover node. Ask anew for each step.

        What is written stays as it is until `reduce` commits, also if `reduce` fails.
        """

    @abstractmethod
    def lend(self, loans: Sequence[Loan]) -> None:
        """Instead of writing these elements to slot 0: only what peers will read of them is copied.

        The arrays must stay as they are until the next `reduce` returns.
        """

    @abstractmethod
    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        """The sum of all pieces along their tree. `shares[r]` are the pieces that rank r holds.

        The total is the same bits on every rank, whatever the shares. It is valid until the next `reduce`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the memory back. Arrays that were handed out stay readable."""


def copy_loans(slot: Vector, loans: Sequence[Loan]) -> None:
    """For exchanges in which everything has to lie in the slot."""
    for loan in loans:
        np.copyto(slot[loan.section][loan.lo : loan.hi], loan.array)


class AbstractGroup(ABC):
    """The workers of one view, as one of them sees them."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This worker's place in the view."""

    @property
    @abstractmethod
    def members(self) -> tuple[str, ...]:
        """Everyone's id, by rank."""

    @property
    def size(self) -> int:
        return len(self.members)

    @abstractmethod
    def gather(self, what: str, value: bytes) -> list[bytes]:
        """Small values of all, by rank."""

    @abstractmethod
    def broadcast(self, what: str, arrays: Sequence[Array]) -> None:
        """Writes rank 0's contents into everyone's arrays.

        Types and shapes must match: Diverged names what doesn't, before anything is written.
        """

    @abstractmethod
    def gather_rows(self, what: str, arrays: Sequence[Array]) -> list[list[Array]]:
        """Everyone's arrays, by rank. Their number, types and shapes may differ."""

    @abstractmethod
    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        """Rank 0 gives a header for all and parts[r] for rank r, the others give None.

        Everyone gets the header and its own part.
        """

    @abstractmethod
    def pass_on(self, what: str, giver: int, takers: Set[int], given: Result | None) -> Result | None:
        """The giver's result for the takers; None for everyone else. Only the giver gives one."""

    @abstractmethod
    def among(self, ranks: Sequence[int]) -> AbstractGroup:
        """Some of the members, this one too, as a group of their own; ascending. It is not closed by itself.

        Two members that are in several such groups together use them in the same order.
        """

    # Not collective: from one to others that wait for it, between two collective calls.

    @abstractmethod
    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[Array]) -> None:
        """Arrays under a name. Each of the ranks receives it before the next collective call; nobody waits here."""

    @abstractmethod
    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[Array]:
        """What a rank sends under this name. Read it before the next collective call."""

    @abstractmethod
    def flush(self, what: str) -> None:
        """Until all that this worker has sent is on its way."""

    @abstractmethod
    def open(self, layout: VectorLayout, slots: int, encoding: VectorEncoding | None = None) -> AbstractExchange:
        """Make the memory for exchanges of `layout` in which a worker has up to `slots` partial sums.

        `encoding` is the form in which they travel; None: as they are.
        """

    @abstractmethod
    def settle(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        """Before `shares[r]` are computed by rank r: everyone has what is kept of its slots."""

    @abstractmethod
    def copy(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        """After `shares[r]` were written by rank r: whoever keeps copies has them."""

    @property
    @abstractmethod
    def neighbours(self) -> tuple[int, ...]:
        """The ranks that can share memory with this one, itself among them; lowest first."""

    @abstractmethod
    def hand_block(self, what: str, giver: int, block: SharedBlock | None, nbytes: int) -> SharedBlock:
        """The block of one of the neighbours, for all of them to write to. Collective among them, not among all.

        Only the giver gives one, and gets it back. It is the giver's word that peers may write to it.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave. Peers that still wait for this worker learn that it is gone."""
