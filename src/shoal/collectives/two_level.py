"""How the workers of several hosts add up in two levels: who adds what, and which bytes go from whom to whom. Pure.

The vector is cut into one slice per host, and each slice among the members of its host: a rank's own part. On every
other host the same slice is cut among that host's members, who stand for their host there:

    sum       a member adds up what it stands for, from its neighbours' slots, as far as the tree allows: into the
              largest nodes that lie wholly within the host's pieces. They cross to whoever owns the elements.
    reduce    the owner adds the other hosts' sums and its neighbours' slots along the tree.
    gather    the total crosses back the same way, into the memory that the members of a host share.

The additions are the tree's own, with the same operands, so the bits are those of any other exchange. Let V be the
bytes of a vector, H the hosts, S a host's slice (V / H) and c the nodes that its pieces make. Per step the host sends

    c (V - S) + (H - 1) S         with c = 1: 2 (H - 1) / H of V, as if it had one worker

c is 1 if the host's pieces are one node. If ranks of several hosts interleave, or if the pieces do not divide along
the tree, it is more, and never more than the nodes of all its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from shoal.collectives.layout import LINE
from shoal.collectives.tree import Add, Node, additions, cover, split


class Operand(NamedTuple):
    """A partial sum: slot `number` of a rank, or, where there is no rank, sum `number` of a host."""

    rank: int | None
    host: int
    number: int


class NodeSum(NamedTuple):
    """One of the sums that cross from a host, and how it comes about. Without additions it is its only input."""

    node: Node
    inputs: tuple[Operand, ...]
    program: tuple[Add, ...]


class TwoLevelAdditions(NamedTuple):
    """What the members of one host add up in a step, each for the elements that fall to it."""

    sums: tuple[NodeSum, ...]  # for the other hosts' slices
    total: NodeSum  # for the own host's


class TwoLevelSplit:
    """Which elements fall to whom. Every member of a view derives the same from the same hosts."""

    def __init__(self, hosts: Sequence[Sequence[int]], nbytes: int, grain: int = LINE) -> None:
        """`grain`: bytes at whose multiples a vector may be cut."""
        self.hosts = tuple(tuple(ranks) for ranks in hosts)
        slices = _cut(range(nbytes), len(self.hosts), grain)
        self._host = {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}
        # stands[rank][host]: what of the host's slice falls to this rank among its own host's members.
        self._stands = {
            rank: tuple(_cut(part, len(ranks), grain)[place] for part in slices)
            for ranks in self.hosts
            for place, rank in enumerate(ranks)
        }

    def host(self, rank: int) -> int:
        """The number of the host that a rank is on."""
        return self._host[rank]

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks of this one's host, itself among them."""
        return self.hosts[self._host[rank]]

    def owned(self, rank: int) -> range:
        """The bytes whose total this rank adds up."""
        return self._stands[rank][self._host[rank]]

    def stands_for(self, rank: int) -> tuple[range, ...]:
        """The bytes of the other hosts' slices that this rank adds up for its host."""
        return tuple(part for host, part in enumerate(self._stands[rank]) if host != self._host[rank])

    def crosses(self, rank: int, owner: int) -> range:
        """What `rank` sends to `owner` of its host's sums, and gets back as total. Empty on one host."""
        if self._host[rank] == self._host[owner]:
            return range(0)
        part, owned = self._stands[rank][self._host[owner]], self.owned(owner)
        start, stop = max(part.start, owned.start), min(part.stop, owned.stop)
        return range(start, stop) if start < stop else range(0)

    def bytes_out(self, host: int, sums: int) -> int:
        """What crosses from a host whose pieces make so many sums, per step, without headers."""
        others = [rank for rank in self._host if self._host[rank] != host]
        pairs = [(mine, other) for mine in self.hosts[host] for other in others]
        return sum(sums * len(self.crosses(*pair)) + len(self.crosses(*reversed(pair))) for pair in pairs)


@lru_cache(maxsize=64)
def two_level_additions(
    pieces: int, shares: tuple[range, ...], hosts: tuple[tuple[int, ...], ...], host: int
) -> TwoLevelAdditions:
    """What the members of `host` add up in a step whose pieces are held so."""
    slots = {
        node: Operand(rank, mine, number)
        for mine, ranks in enumerate(hosts)
        for rank in ranks
        for number, node in enumerate(cover(pieces, shares[rank]))
    }
    sums = tuple(_host_sum(node, slots) for node in host_nodes(pieces, shares, hosts[host]))
    operands = {node: operand for node, operand in slots.items() if operand.host == host}
    for other, ranks in enumerate(hosts):
        if other != host:
            nodes = host_nodes(pieces, shares, ranks)
            operands |= {node: Operand(None, other, number) for number, node in enumerate(nodes)}
    return TwoLevelAdditions(sums, _sum_of(Node(0, pieces), operands))


def host_nodes(pieces: int, shares: tuple[range, ...], ranks: Sequence[int]) -> tuple[Node, ...]:
    """The largest nodes that together are exactly the pieces of these ranks, left to right."""
    held = frozenset(piece for rank in ranks for piece in shares[rank])
    return tuple(_nodes_within(Node(0, pieces), held)) if held else ()


def _nodes_within(node: Node, held: frozenset[int]) -> list[Node]:
    count = sum(piece in held for piece in range(*node))
    if not count:
        return []
    if count == node.hi - node.lo:
        return [node]
    left, right = split(node)
    return _nodes_within(left, held) + _nodes_within(right, held)


def _host_sum(node: Node, slots: dict[Node, Operand]) -> NodeSum:
    return _sum_of(node, {part: slot for part, slot in slots.items() if node.lo <= part.lo and part.hi <= node.hi})


def _sum_of(node: Node, parts: dict[Node, Operand]) -> NodeSum:
    inside = sorted(parts)
    # How a node splits depends on its size only: seen from its first piece it is a root of its own.
    program = additions(node.hi - node.lo, tuple(Node(part.lo - node.lo, part.hi - node.lo) for part in inside))
    return NodeSum(node, tuple(parts[part] for part in inside), program)


def _cut(part: range, parts: int, grain: int) -> tuple[range, ...]:
    """A run of bytes in `parts` runs, as equal as whole grains allow."""
    grains = -(-len(part) // grain)
    bounds = [part.start + min(len(part), grains * number // parts * grain) for number in range(parts + 1)]
    return tuple(range(lo, hi) for lo, hi in pairwise(bounds))
