"""Workers that take rows side by side, without a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.collectives.tree import aligned
from shoal.data.order import piece_bounds, pieces_of
from shoal.errors import ViewChanged

PIECES = 6
Arrays = Sequence[np.ndarray]


class Place:
    """A worker's place beside a wire. The chief takes first: what it hands out lies there for the others."""

    def __init__(self, rank: int, size: int, wire: list[tuple[str, bytes, Sequence[Arrays]]] | None = None) -> None:
        self.rank = rank
        self.size = size
        self._wire = wire
        self.broken = False  # the view changes just as something is handed out

    def scatter(self, what: str, parts: Sequence[Arrays] | None, header: bytes = b"") -> tuple[bytes, list[np.ndarray]]:
        assert self._wire is not None, "a source that is indexed asks nobody"
        if self.broken:
            raise ViewChanged(2)
        if self.rank == 0:
            assert parts is not None
            assert len(parts) == self.size
            self._wire[:] = [(what, header, parts)]
        expected, header, parts = self._wire[0]
        assert what == expected
        return header, list(parts[self.rank])


def rows_by_rank(workers: int) -> Callable[[int], Sequence[range]]:
    def split(size: int) -> Sequence[range]:
        used = pieces_of(size, PIECES)
        bounds = piece_bounds(size, used)
        runs = aligned(used, [used // workers] * workers, [-(-used // workers)] * workers)
        return [range(bounds[run.start], bounds[run.stop]) for run in runs]

    return split
