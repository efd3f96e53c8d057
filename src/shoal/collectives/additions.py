"""Who adds what to what: the additions of one step over everyone's slots. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from shoal.collectives.tree import Add, additions, cover
from shoal.errors import UsageError


class Additions(NamedTuple):
    """A program over the slots of all ranks."""

    inputs: tuple[tuple[int, int], ...]  # (rank, slot) of each of the program's inputs
    program: tuple[Add, ...]


@lru_cache(maxsize=64)
def plan(pieces: int, shares: tuple[range, ...], slots: int) -> Additions:
    """The plan for a step whose pieces are held so. UsageError if a rank has more partial sums than slots."""
    covers = [cover(pieces, held) for held in shares]
    most = max(len(nodes) for nodes in covers)
    if most > slots:
        raise UsageError(
            f"a share of {shares} of {pieces} pieces makes {most} partial sums; "
            f"the exchange was opened with {slots} slots"
        )
    inputs = tuple((rank, slot) for rank, nodes in enumerate(covers) for slot in range(len(nodes)))
    nodes = tuple(node for rank_nodes in covers for node in rank_nodes)
    return Additions(inputs, additions(pieces, nodes))
