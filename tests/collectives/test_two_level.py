"""The plan of the two-level exchange, carried out in one process: bits, bytes, and who stands for what."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from shoal.collectives.adder import Adder
from shoal.collectives.additions import plan
from shoal.collectives.layout import Array, Vector, VectorLayout
from shoal.collectives.tree import Node, aligned, cover, split
from shoal.collectives.two_level import NodeSum, TwoLevelSplit, host_nodes, two_level_additions

LAYOUT = VectorLayout(1003, 3, 5)
Hosts = tuple[tuple[int, ...], ...]


def node_sum(node: Node) -> Array:
    if node.hi - node.lo == 1:
        random = np.random.default_rng(node.lo)
        return (random.standard_normal(LAYOUT.f32) * 10.0 ** random.integers(-6, 7, LAYOUT.f32)).astype(np.float32)
    left, right = split(node)
    return node_sum(left) + node_sum(right)


class TwoLevels:
    """One step of all members, each touching only the bytes that fall to it."""

    def __init__(self, pieces: int, shares: tuple[range, ...], hosts: Hosts) -> None:
        self.pieces, self.shares, self.hosts = pieces, shares, hosts
        self.split = TwoLevelSplit(hosts, LAYOUT.nbytes)
        self.sent = dict.fromkeys(range(len(hosts)), 0)
        self.adder = Adder(LAYOUT)
        self.slots = [[self._slot(node) for node in cover(pieces, held)] for held in shares]
        self.sums = {rank: self._sums(rank) for ranks in hosts for rank in ranks}  # what each has made
        self.results = [LAYOUT.memory() for _ in hosts]

    def _slot(self, node: Node) -> Vector:
        vector = LAYOUT.vector(LAYOUT.memory())
        vector.f32[:], vector.f64[:], vector.i64[:] = node_sum(node), node.hi - node.lo, 1
        return vector

    def _additions(self, rank: int) -> tuple[tuple[NodeSum, ...], NodeSum]:
        return two_level_additions(self.pieces, self.shares, self.hosts, self.split.host(rank))

    def _sums(self, rank: int) -> list[memoryview]:
        made = []
        for each in self._additions(rank)[0]:
            memory = LAYOUT.memory()
            inputs = [self.slots[operand.rank][operand.number] for operand in each.inputs if operand.rank is not None]
            for part in self.split.stands_for(rank):
                self.adder.add(each.program, inputs, LAYOUT.vector(memory), part)
            made.append(memory)
        return made

    def totals(self) -> list[bytes]:
        for owner in self.sums:
            self._reduce(owner)
        return [bytes(result) for result in self.results]

    def _reduce(self, owner: int) -> None:
        total = self._additions(owner)[1]
        arrived = {(host, k): LAYOUT.memory() for host in range(len(self.hosts)) for k in range(20)}
        others = [rank for rank in self.sums if self.split.host(rank) != self.split.host(owner)]
        for rank in others:
            part = self.split.crosses(rank, owner)
            for k, memory in enumerate(self.sums[rank]):
                self._copy(memory, arrived[self.split.host(rank), k], part, self.split.host(rank))
        inputs = [
            LAYOUT.vector(arrived[host, number]) if rank is None else self.slots[rank][number]
            for rank, host, number in total.inputs
        ]
        mine = self.results[self.split.host(owner)]
        self.adder.add(total.program, inputs, LAYOUT.vector(mine), self.split.owned(owner))
        for rank in others:
            part = self.split.crosses(rank, owner)
            self._copy(mine, self.results[self.split.host(rank)], part, self.split.host(owner))

    def _copy(self, source: memoryview, target: memoryview, part: range, host: int) -> None:
        target[part.start : part.stop] = source[part.start : part.stop]
        self.sent[host] += len(part)


def one_level(pieces: int, shares: tuple[range, ...], levels: TwoLevels) -> bytes:
    steps = plan(pieces, shares, 20)
    memory = LAYOUT.memory()
    levels.adder.add(steps.program, [levels.slots[rank][slot] for rank, slot in steps.inputs], LAYOUT.vector(memory))
    return bytes(memory)


def shuffled_hosts(ranks: int, hosts: int, chance: random.Random) -> Hosts:
    """Any ranks on any host, at least one on each."""
    places = [*range(hosts), *(chance.randrange(hosts) for _ in range(ranks - hosts))]
    chance.shuffle(places)
    found = [tuple(rank for rank in range(ranks) if places[rank] == host) for host in range(hosts)]
    return tuple(sorted(found))


def any_shares(pieces: int, ranks: int, chance: random.Random) -> tuple[range, ...]:
    bounds = [0, *sorted(chance.randint(0, pieces) for _ in range(ranks - 1)), pieces]
    return tuple(range(bounds[i], bounds[i + 1]) for i in range(ranks))


def test_the_bits_are_those_of_the_one_level_exchange_whatever_the_hosts_and_shares() -> None:
    for seed in range(150):
        chance = random.Random(seed)
        ranks = chance.randint(2, 7)
        pieces = chance.randint(1, 13)
        hosts = shuffled_hosts(ranks, chance.randint(1, min(4, ranks)), chance)
        levels = TwoLevels(pieces, any_shares(pieces, ranks, chance), hosts)
        totals = levels.totals()
        assert totals == [one_level(pieces, levels.shares, levels)] * len(hosts), f"seed {seed}"
        assert LAYOUT.vector(memoryview(totals[0])).f32.tobytes() == node_sum(Node(0, pieces)).tobytes()
        for host, sent in levels.sent.items():
            sums = len(host_nodes(pieces, levels.shares, hosts[host]))
            assert sent == levels.split.bytes_out(host, sums), f"seed {seed}"


@pytest.mark.parametrize("members", [1, 2, 3, 4])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_each_element_crosses_as_if_a_host_had_one_worker(hosts: int, members: int) -> None:
    """2 (H - 1) / H of a vector per host, up to the rounding to cache lines, however many workers it has."""
    pieces = 16
    size = pieces // hosts
    share = aligned(size, [size // members] * members, [-(-size // members)] * members)
    shares = tuple(range(h * size + r.start, h * size + r.stop) for h in range(hosts) for r in share)
    groups = tuple(tuple(range(h * members, (h + 1) * members)) for h in range(hosts))
    levels = TwoLevels(pieces, shares, groups)
    levels.totals()
    for sent in levels.sent.values():
        assert abs(sent - 2 * (hosts - 1) * LAYOUT.nbytes / hosts) <= 2 * hosts * 64


@pytest.mark.parametrize(
    ("shares", "hosts", "sums"),
    [
        ((2, 2, 2, 2), ((0, 1), (2, 3)), (1, 1)),
        ((2, 2, 2, 2), ((0, 2), (1, 3)), (2, 2)),
        ((2, 2, 2, 2), ((0, 3), (1, 2)), (2, 2)),
        ((3, 1, 1, 3), ((0, 1), (2, 3)), (1, 1)),
        ((1, 4, 3), ((0, 1), (2,)), (2, 2)),
    ],
    ids=["neighbours by rank", "interleaved", "around the middle", "unequal workers", "off the tree"],
)
def test_what_crosses_more_than_once_is_what_the_tree_keeps_apart(
    shares: Sequence[int], hosts: Hosts, sums: Sequence[int]
) -> None:
    bounds = [sum(shares[:i]) for i in range(len(shares) + 1)]
    held = tuple(range(bounds[i], bounds[i + 1]) for i in range(len(shares)))
    assert tuple(len(host_nodes(8, held, ranks)) for ranks in hosts) == tuple(sums)


def test_every_byte_has_one_owner_and_one_who_stands_for_it_on_every_other_host() -> None:
    hosts = ((0, 3, 4), (1,), (2, 5))
    for nbytes in (64, 640, LAYOUT.nbytes):
        split_ = TwoLevelSplit(hosts, nbytes)
        assert sorted(byte for rank in range(6) for byte in split_.owned(rank)) == list(range(nbytes))
        for host, ranks in enumerate(hosts):
            others = [byte for rank in range(6) if split_.host(rank) != host for byte in split_.owned(rank)]
            assert sorted(b for rank in ranks for part in split_.stands_for(rank) for b in part) == sorted(others)
            crossing = [b for rank in ranks for owner in range(6) for b in split_.crosses(rank, owner)]
            assert sorted(crossing) == sorted(others)
