"""Carries out the tree's additions on vectors, in chunks that stay in cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.collectives.layout import Array, Layout, Run, Vector
from shoal.collectives.tree import Add, registers

CHUNK_BYTES = 512 << 10  # measured: smaller ones cost calls, larger ones leave the second-level cache


class Adder:
    """Adds vectors of one layout. Keeps its scratch memory from step to step."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._whole = tuple(layout.runs(range(layout.nbytes)))
        self._scratch: list[list[Array]] = []  # per register, one chunk per section

    def add(self, program: Sequence[Add], inputs: Sequence[Vector], result: Vector, part: range | None = None) -> None:
        """result = the root of `inputs` under `program`; only the bytes `part` of the vector, if given.

        Inputs are only read; no memory outside the part is touched. The bits don't depend on the part or the
        chunks: each element's additions are the program's, in its order.
        """
        runs = self._whole if part is None else tuple(self._layout.runs(part))
        with np.errstate(all="ignore"):  # an overflow is data here: it must reach everybody's optimizer
            for run in runs:
                if len(program) < 2:
                    self._pass_once(program, inputs, result, run)
                else:
                    self._pass_in_chunks(program, inputs, result, run)

    def _pass_once(self, program: Sequence[Add], inputs: Sequence[Vector], result: Vector, run: Run) -> None:
        section, lo, hi = run
        out = result[section][lo:hi]
        if program:
            np.add(inputs[program[0].left][section][lo:hi], inputs[program[0].right][section][lo:hi], out=out)
        else:
            np.copyto(out, inputs[0][section][lo:hi])

    def _pass_in_chunks(self, program: Sequence[Add], inputs: Sequence[Vector], result: Vector, run: Run) -> None:
        section, lo, hi = run
        arrays = [vector[section] for vector in inputs]
        out = result[section]
        step = CHUNK_BYTES // out.itemsize
        self._make_scratch(registers(program))
        for start in range(lo, hi, step):
            stop = min(start + step, hi)
            # Negative operands index from the end: ~0, the result, is the last; ~1 the one before it.
            chunks = [array[start:stop] for array in arrays]
            chunks += [scratch[section][: stop - start] for scratch in reversed(self._scratch)]
            chunks.append(out[start:stop])
            for left, right, into in program:
                np.add(chunks[left], chunks[right], out=chunks[into])

    def _make_scratch(self, count: int) -> None:
        while len(self._scratch) < count:
            self._scratch.append(
                [
                    np.empty(min(section.length, CHUNK_BYTES // section.dtype.itemsize), section.dtype)
                    for section in self._layout.sections
                ]
            )
