"""The tree along which pieces are added up. Pure.

Pieces are numbered 0 to P-1. A node is a run of pieces, (lo, hi) half open; a node of more than one piece is
the sum of its left and right part, split at `lo` + the largest power of two smaller than its size. The root's
bits therefore depend on P alone and not on who computed which pieces: floating-point addition is not
associative, but this order of additions never changes.

    P = 6:   (0,6) = (0,4) + (4,6)       (0,4) = (0,2) + (2,4)       (0,2) = (0,1) + (1,2)   ...

How a node splits depends on its size only, so `additions(hi - lo, ...)` also sums the inside of one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from shoal.errors import UsageError


class Node(NamedTuple):
    """A run of pieces whose sum is one node of the tree."""

    lo: int
    hi: int


class Add(NamedTuple):
    """One addition of a program: `into` = `left` + `right`.

    An operand >= 0 is an input (the program's i-th node). A negative one is a register: ~0 is the result,
    ~1 and so on are scratch. Inputs are never written.
    """

    left: int
    right: int
    into: int


def split(node: Node) -> tuple[Node, Node]:
    """The two parts that a node of more than one piece is the sum of."""
    size = node.hi - node.lo
    middle = node.lo + (1 << (size - 1).bit_length() - 1)
    return Node(node.lo, middle), Node(middle, node.hi)


@lru_cache(maxsize=4096)
def cover(pieces: int, held: range) -> tuple[Node, ...]:
    """The largest nodes that together are exactly the pieces `held`, left to right."""
    if held and not (held.step == 1 and held.start >= 0 and held.stop <= pieces):
        raise UsageError(f"{held} is not a run of the pieces 0 to {pieces - 1}")
    return tuple(_cover(Node(0, pieces), held))


def _cover(node: Node, held: range) -> list[Node]:
    if node.hi <= held.start or held.stop <= node.lo or not held:
        return []
    if held.start <= node.lo and node.hi <= held.stop:
        return [node]
    left, right = split(node)
    return _cover(left, held) + _cover(right, held)


@lru_cache(maxsize=256)
def additions(pieces: int, nodes: tuple[Node, ...]) -> tuple[Add, ...]:
    """The additions, in their fixed order, that turn `nodes` into the root.

    The nodes must be a cover of all pieces, left to right. The last addition writes the result (~0); there is
    none if the only node is the root itself. Which bits the root has does not depend on the nodes.
    """
    index = {node: i for i, node in enumerate(nodes)}
    program: list[Add] = []

    def total(node: Node, into: int) -> int:
        if node in index:
            return index.pop(node)
        if node.hi - node.lo == 1:
            raise UsageError(f"piece {node.lo} of {pieces} is in none of the nodes {nodes}")
        left, right = split(node)
        # The left sum may wait in the register that is written last anyway; the right one needs its own.
        program.append(Add(total(left, into), total(right, into - 1), into))
        return into

    total(Node(0, pieces), ~0)
    if index or len(set(nodes)) < len(nodes):
        raise UsageError(f"the nodes {nodes} are no cover of {pieces} pieces: some hold the same pieces")
    return tuple(program)


def registers(program: Sequence[Add]) -> int:
    """How many scratch registers a program needs beside the result."""
    return max((~add.into for add in program), default=0)


def aligned(pieces: int, least: Sequence[int], most: Sequence[int]) -> tuple[range, ...]:
    """Contiguous runs of pieces, one per rank, of at least `least` and at most `most` pieces each.

    Those are taken whose largest cover is smallest, then whose covers are fewest, then which give the first ranks
    more.
    """
    if sum(least) > pieces or sum(most) < pieces or any(low > high for low, high in zip(least, most, strict=True)):
        raise UsageError(f"cannot cut {pieces} pieces into runs of at least {least} and at most {most}")
    limit = 1
    while (found := _fewest_nodes(pieces, least, most, limit)) is None:
        limit += 1
    return found


def _fewest_nodes(pieces: int, least: Sequence[int], most: Sequence[int], limit: int) -> tuple[range, ...] | None:
    """Shares within the bounds whose covers have at most `limit` nodes each, and fewest together."""
    # best[end]: the fewest nodes with which the ranks so far hold the pieces up to `end`, and their shares.
    best: dict[int, tuple[int, tuple[range, ...]]] = {0: (0, ())}
    for low, high in zip(least, most, strict=True):
        reached: dict[int, tuple[int, tuple[range, ...]]] = {}
        for start, (count, held) in best.items():
            for stop in range(min(start + high, pieces), start + low - 1, -1):
                nodes = len(cover(pieces, range(start, stop)))
                if nodes <= limit and (stop not in reached or count + nodes < reached[stop][0]):
                    reached[stop] = (count + nodes, (*held, range(start, stop)))
        best = reached
    return best[pieces][1] if pieces in best else None
