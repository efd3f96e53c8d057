"""Carries out the tree's additions on vectors, in chunks that stay in cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.collectives.layout import Array, Loan, PieceRun, Vector, VectorLayout
from shoal.collectives.tree import Add, registers

CHUNK_BYTES = 512 << 10  # measured: smaller ones cost calls, larger ones leave the second-level cache


class Adder:
    """Adds vectors of one layout. Keeps its scratch memory from step to step."""

    def __init__(self, layout: VectorLayout) -> None:
        self._layout = layout
        self._whole = tuple(layout.runs(range(layout.nbytes)))
        self._scratch: list[list[Array]] = []  # per register, one chunk per section
        rounded = np.add if layout.rounding is None else layout.rounding.add
        self._sum = [np.add, np.add, np.add, rounded]  # by section: out = left + right

    def add(
        self,
        program: Sequence[Add],
        inputs: Sequence[Vector],
        result: Vector,
        part: range | None = None,
        lender: int = 0,
        loans: Sequence[Loan] = (),
    ) -> None:
        """result = the root of `inputs` under `program`; only the bytes `part` of the vector, if given.

        Where there are `loans`, they stand for the elements of input number `lender`. Inputs are only read; no memory
        outside the part is touched. The bits don't depend on the part, the loans or the chunks: each element's
        additions are the program's, in its order.
        """
        runs = self._whole if part is None else tuple(self._layout.runs(part))
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            for run in runs:
                for (section, lo, hi), lent in _spans(run, loans):
                    arrays = [vector[section][lo:hi] for vector in inputs]
                    if lent is not None:
                        arrays[lender] = lent
                    self._add(program, arrays, result[section][lo:hi], section)

    def _add(self, program: Sequence[Add], arrays: list[Array], out: Array, section: int) -> None:
        if not program:
            np.copyto(out, arrays[0])
        elif len(program) == 1:
            self._sum[section](arrays[program[0].left], arrays[program[0].right], out=out)
        else:
            self._add_in_chunks(program, arrays, out, section)

    def _add_in_chunks(self, program: Sequence[Add], arrays: list[Array], out: Array, section: int) -> None:
        step = CHUNK_BYTES // out.itemsize
        self._make_scratch(registers(program))
        for start in range(0, out.size, step):
            stop = min(start + step, out.size)
            # Negative operands index from the end: ~0, the result, is the last; ~1 the one before it.
            chunks = [array[start:stop] for array in arrays]
            chunks += [scratch[section][: stop - start] for scratch in reversed(self._scratch)]
            chunks.append(out[start:stop])
            for left, right, into in program:
                self._sum[section](chunks[left], chunks[right], out=chunks[into])

    def _make_scratch(self, count: int) -> None:
        while len(self._scratch) < count:
            self._scratch.append(
                [
                    np.empty(min(section.length, CHUNK_BYTES // section.dtype.itemsize), section.dtype)
                    for section in self._layout.sections
                ]
            )


def _spans(run: PieceRun, loans: Sequence[Loan]) -> Iterator[tuple[PieceRun, Array | None]]:
    """The run, cut where a loan begins or ends; with each span what is lent for it."""
    section, at, end = run
    for loan in sorted((loan for loan in loans if loan.section == section), key=lambda loan: loan.lo):
        lo, hi = max(at, loan.lo), min(end, loan.hi)
        if lo >= hi:
            continue
        if at < lo:
            yield PieceRun(section, at, lo), None
        yield PieceRun(section, lo, hi), loan.array[lo - loan.lo : hi - loan.lo]
        at = hi
    if at < end:
        yield PieceRun(section, at, end), None
