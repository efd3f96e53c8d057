from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.collectives.layout import Array
from shoal.collectives.tree import Add, Node, additions, aligned, cover, registers, split
from shoal.errors import UsageError

from .harness import evenly


def gradients(pieces: int, seed: int) -> list[Array]:
    """Vectors whose sum depends on the order of additions: magnitudes far apart."""
    random = np.random.default_rng(seed)
    return [(random.standard_normal(50) * 10.0 ** random.integers(-6, 7, 50)).astype(np.float32) for _ in range(pieces)]


def node_sum(node: Node, leaves: list[Array]) -> Array:
    """The tree's definition, word by word."""
    if node.hi - node.lo == 1:
        return leaves[node.lo]
    left, right = split(node)
    return node_sum(left, leaves) + node_sum(right, leaves)


def run(program: tuple[Add, ...], inputs: list[Array]) -> Array:
    """Carry out a program as its docstring says."""
    held: dict[int, Array] = dict(enumerate(inputs))
    for left, right, into in program:
        assert into < 0, "inputs are never written"
        held[into] = held[left] + held[right]
    return held[~0] if program else inputs[0]


def cuts(pieces: int) -> st.SearchStrategy[list[range]]:
    """All ways to give runs of pieces to ranks, empty runs included."""
    return st.lists(st.integers(0, pieces), max_size=6).map(
        lambda bounds: [range(a, b) for a, b in itertools.pairwise(sorted([0, *bounds, pieces]))]
    )


@given(st.integers(1, 40).flatmap(lambda pieces: st.tuples(st.just(pieces), cuts(pieces))), st.integers(0, 99))
def test_the_roots_bits_do_not_depend_on_who_holds_what(scene: tuple[int, list[range]], seed: int) -> None:
    pieces, held = scene
    leaves = gradients(pieces, seed)
    nodes = tuple(node for run_ in held for node in cover(pieces, run_))
    total = run(additions(pieces, nodes), [node_sum(node, leaves) for node in nodes])
    assert total.tobytes() == node_sum(Node(0, pieces), leaves).tobytes()


def test_summing_in_another_order_changes_the_bits() -> None:
    """The negative control: without the tree, who holds what and who comes first show in the sum."""
    leaves = gradients(8, 0)
    total = node_sum(Node(0, 8), leaves).tobytes()
    one_by_one = sum(leaves[1:], leaves[0])
    arrival = node_sum(Node(0, 4), leaves[4:]) + leaves[0] + leaves[1] + leaves[2] + leaves[3]
    assert one_by_one.tobytes() != total
    assert arrival.tobytes() != total


@given(st.integers(1, 200).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p), st.integers(0, p))))
def test_a_cover_is_the_fewest_nodes_that_are_just_the_run(scene: tuple[int, int, int]) -> None:
    pieces, start, stop = scene
    nodes = cover(pieces, range(start, stop))
    assert [piece for node in nodes for piece in range(*node)] == list(range(start, stop))
    assert all(is_node(Node(0, pieces), node) for node in nodes)
    for left, right in itertools.pairwise(nodes):  # no two of them are a node together
        assert not is_node(Node(0, pieces), Node(left.lo, right.hi))
    assert len(nodes) <= 2 * max(1, pieces.bit_length())


def is_node(root: Node, wanted: Node) -> bool:
    if root == wanted:
        return True
    if wanted.lo < root.lo or root.hi < wanted.hi or root.hi - root.lo == 1:
        return False
    left, right = split(root)
    return is_node(left, wanted) or is_node(right, wanted)


def test_a_node_splits_by_its_size_alone() -> None:
    assert split(Node(0, 6)) == (Node(0, 4), Node(4, 6))
    assert split(Node(8, 10)) == (Node(8, 9), Node(9, 10))
    assert split(Node(3, 11)) == (Node(3, 7), Node(7, 11))


@given(st.integers(1, 64))
def test_a_program_needs_little_scratch(pieces: int) -> None:
    leaves = tuple(Node(i, i + 1) for i in range(pieces))
    program = additions(pieces, leaves)
    assert len(program) == pieces - 1
    assert registers(program) <= pieces.bit_length()


@pytest.mark.parametrize(
    "nodes",
    [(Node(0, 2),), (Node(0, 2), Node(2, 4), Node(2, 4)), (Node(0, 3), Node(3, 4)), (Node(0, 4), Node(0, 2))],
    ids=["too few", "one twice", "not nodes", "overlapping"],
)
def test_nodes_that_are_no_cover_are_refused(nodes: tuple[Node, ...]) -> None:
    with pytest.raises(UsageError):
        additions(4, nodes)


@pytest.mark.parametrize("held", [range(-1, 2), range(3, 9), range(0, 4, 2)])
def test_runs_that_are_not_of_the_pieces_are_refused(held: range) -> None:
    with pytest.raises(UsageError):
        cover(8, held)


@given(st.integers(1, 64), st.integers(1, 12))
def test_equal_workers_get_equal_shares(pieces: int, size: int) -> None:
    held = evenly(pieces, size)
    counts = [len(run_) for run_ in held]
    assert [piece for run_ in held for piece in run_] == list(range(pieces))
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("pieces", "size"), [(4, 4), (4, 3), (8, 2), (8, 4), (6, 3), (6, 4), (16, 4), (7, 3), (5, 8)])
def test_equal_shares_of_such_numbers_are_one_partial_sum_each(pieces: int, size: int) -> None:
    assert all(len(cover(pieces, held)) <= 1 for held in evenly(pieces, size))


def test_among_equal_shares_the_covers_are_smallest() -> None:
    """By trying them all."""
    for pieces, size in [(8, 3), (16, 5), (12, 5), (9, 4)]:
        low, extra = divmod(pieces, size)
        best = min(
            (max(counts), sum(counts))
            for lucky in itertools.combinations(range(size), extra)
            for counts in [cover_sizes(pieces, [low + (rank in lucky) for rank in range(size)])]
        )
        found = [len(cover(pieces, held)) for held in evenly(pieces, size)]
        assert (max(found), sum(found)) == best


def cover_sizes(pieces: int, counts: list[int]) -> list[int]:
    bounds = [0, *itertools.accumulate(counts)]
    return [len(cover(pieces, range(a, b))) for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize(
    ("least", "most"), [([3, 2], [4, 2]), ([0, 0], [2, 1]), ([2, 0], [1, 4])], ids=["too many", "too few", "crossed"]
)
def test_impossible_runs_are_refused(least: list[int], most: list[int]) -> None:
    with pytest.raises(UsageError, match="cannot cut 4 pieces"):
        aligned(4, least, most)
