"""A group of one: everything is already here."""

from __future__ import annotations

from collections.abc import Sequence, Set

from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Outcome, Result, copy_loans
from shoal.collectives.additions import plan
from shoal.collectives.encoded import open_encoded
from shoal.collectives.layout import Array, Loan, Vector, VectorLayout
from shoal.collectives.residuals import Residuals
from shoal.collectives.vector_encoding import VectorEncoding
from shoal.errors import UsageError
from shoal.wire.memory import SharedBlock


class Alone(AbstractGroup):
    """The only worker of a view. No wire, no copies."""

    def __init__(self, me: str) -> None:
        self._members = (me,)

    @property
    def rank(self) -> int:
        return 0

    @property
    def members(self) -> tuple[str, ...]:
        return self._members

    def gather(self, what: str, value: bytes) -> list[bytes]:
        return [value]

    def broadcast(self, what: str, arrays: Sequence[Array]) -> None:
        pass

    def gather_rows(self, what: str, arrays: Sequence[Array]) -> list[list[Array]]:
        return [list(arrays)]

    def scatter(
        self, what: str, parts: Sequence[Sequence[Array]] | None, header: bytes = b""
    ) -> tuple[bytes, list[Array]]:
        return header, list(parts[0]) if parts else []

    def pass_on(self, what: str, giver: int, takers: Set[int], given: Result | None) -> Result | None:
        return None

    def among(self, ranks: Sequence[int]) -> AbstractGroup:
        return self

    def send(self, ranks: Sequence[int], name: tuple[int, ...], arrays: Sequence[Array]) -> None:
        raise UsageError(f"a worker alone has nobody to send {name} to")

    def receive(self, rank: int, name: tuple[int, ...], what: str) -> list[Array]:
        raise UsageError(f"{what}: a worker alone has nobody to receive {name} from")

    def flush(self, what: str) -> None:
        pass

    def open(self, layout: VectorLayout, slots: int, encoding: VectorEncoding | None = None) -> AbstractExchange:
        return _AloneExchange(layout) if encoding is None else open_encoded(None, layout, slots, encoding)

    def settle(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        kept.settle(None, ((0,),), shares, self)

    def copy(self, kept: Residuals, shares: tuple[range, ...]) -> None:
        pass

    @property
    def neighbours(self) -> tuple[int, ...]:
        return (0,)

    def hand_block(self, what: str, giver: int, block: SharedBlock | None, nbytes: int) -> SharedBlock:
        assert block is not None, "there is nobody else who could have one"
        return block

    def close(self) -> None:
        pass


class _AloneExchange(AbstractExchange):
    """The whole batch is one node, so the one partial sum is the total. Two slots take turns, so that a total
    can still be read while the next is written."""

    def __init__(self, layout: VectorLayout) -> None:
        self._turns = [layout.vector(layout.memory()) for _ in range(2)]

    def slot(self, i: int) -> Vector:
        if i != 0:
            raise IndexError(f"a worker alone has one partial sum, number 0, not {i}")
        return self._turns[0]

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self.slot(0), loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        plan(pieces, shares, 1)  # checks that it holds all pieces
        self._turns.reverse()
        return Outcome(self._turns[1], [note])

    def close(self) -> None:
        self._turns.clear()
