"""The sums of a pipeline's step, along the piece tree: each stage's among those who hold it, the metrics' among all."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from shoal.collectives.abstract import AbstractExchange, AbstractGroup, Outcome, copy_loans
from shoal.collectives.layout import Loan, Vector, VectorLayout
from shoal.collectives.tree import cover
from shoal.strategies.partial_sums import PartialSums
from shoal.strategies.schedule import Held
from shoal.strategies.schema import Array, Schema

Filling = Generator[int, tuple[Sequence[Array], float], None]


class StageSums:
    """The memory in which the stages' gradients, and the metrics, are summed up: for one view at a time."""

    def __init__(self, stages: Sequence[Schema], metrics: Schema) -> None:
        self._schemas = {**dict(enumerate(stages)), -1: metrics}
        self._sums: dict[int, PartialSums] = {}
        self._opened: dict[int, AbstractExchange] = {}
        self._slots: dict[int, int] = {}
        self._among: dict[int, tuple[int, ...]] = {}
        self._group: AbstractGroup | None = None

    def open(self, group: AbstractGroup, held: Held, holding: Sequence[Sequence[int]]) -> dict[int, Filling]:
        """What fills this worker's slots, for each of its stages and, under -1, for the metrics.

        `holding`: the ranks that hold each stage, also those that have no piece of it now.
        """
        if group is not self._group:
            self.close()
            self._group = group
        fillings = {}
        pieces = max(run.stop for runs in held for run in runs)
        for number in (*range(len(held)), -1):
            runs = held[number]
            if number >= 0 and group.rank not in holding[number]:
                continue
            slots = max(1, *(len(cover(pieces, run)) for run in runs))
            among = tuple(holding[number]) if number >= 0 else ()
            if number not in self._opened or self._slots[number] < slots or self._among[number] != among:
                if number in self._opened:
                    self._opened.pop(number).close()
                self._opened[number] = self._open(group, number, holding[number] if number >= 0 else None, slots)
                self._slots[number], self._among[number] = slots, among
            if runs[group.rank]:
                fillings[number] = self._filling(number, pieces, runs[group.rank])
        return fillings

    def reduce(
        self, group: AbstractGroup, what: str, pieces: int, held: Held, holding: Sequence[Sequence[int]]
    ) -> dict[int, list[Array]]:
        """The totals of this worker's stages."""
        totals = {}
        for stage, runs in enumerate(held):
            if group.rank in holding[stage]:
                shares = tuple(runs[rank] for rank in holding[stage])
                total, _ = self._opened[stage].reduce(f"{what}: stage {stage}", pieces, shares, b"")
                totals[stage] = self._schemas[stage].views(total)
        return totals

    def reduce_metrics(self, what: str, pieces: int, held: Held, note: bytes) -> tuple[Vector, list[bytes]]:
        """Among all: with it the step commits."""
        total, notes = self._opened[-1].reduce(what, pieces, tuple(held[-1]), note)
        return total, notes

    def close(self) -> None:
        for exchange in self._opened.values():
            exchange.close()
        self._opened, self._slots, self._among, self._group = {}, {}, {}, None

    def _open(self, group: AbstractGroup, number: int, holding: Sequence[int] | None, slots: int) -> AbstractExchange:
        layout = self._schemas[number].layout
        if holding is None:
            return group.open(layout, slots)
        return _OneHolder(layout) if len(holding) == 1 else group.among(holding).open(layout, slots)

    def _filling(self, number: int, pieces: int, run: range) -> Filling:
        if number not in self._sums:
            self._sums[number] = PartialSums(self._schemas[number])
        exchange, sums = self._opened[number], self._sums[number]
        for slot, node in enumerate(cover(pieces, run)):
            yield from sums.filling(exchange.slot(slot), node)


class _OneHolder(AbstractExchange):
    """Of a stage that one worker holds: its one partial sum is the total, in one piece of memory. It is applied before
    the next step writes there.
    """

    def __init__(self, layout: VectorLayout) -> None:
        self._sum = layout.vector(layout.memory())

    def slot(self, i: int) -> Vector:
        if i != 0:
            raise IndexError(f"a stage's only holder has one partial sum, number 0, not {i}")
        return self._sum

    def lend(self, loans: Sequence[Loan]) -> None:
        copy_loans(self._sum, loans)

    def reduce(self, what: str, pieces: int, shares: tuple[range, ...], note: bytes) -> Outcome:
        return Outcome(self._sum, [note])

    def close(self) -> None:
        pass
