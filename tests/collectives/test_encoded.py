"""Partial sums that travel in a codec's form: a toy one, between real workers."""

from __future__ import annotations

from itertools import pairwise, starmap
from pathlib import Path

import numpy as np
import pytest
from tests.half_precision import Half

from shoal.collectives.group import AbstractGroup, VectorEncoding
from shoal.collectives.layout import Array, PieceRun, Vector, VectorLayout
from shoal.collectives.tree import Node, cover, split

from .harness import run_group

# Two gradients with room between them, then a metric; sums in float64 and counts.
LAYOUT = VectorLayout(2000, 3, 5)
GRADIENTS = (PieceRun(0, 0, 900), PieceRun(0, 912, 1900))
PIECES, STEPS = 6, 3


def gradient(step: int, piece: int) -> Array:
    return np.random.default_rng([step, piece]).standard_normal(LAYOUT.f32).astype(np.float32)


def expected(step: int, node: Node, slots: dict[Node, Array]) -> Array:
    if node in slots:
        return slots[node]
    left, right = split(node)
    return expected(step, left, slots) + expected(step, right, slots)


def shares(step: int, size: int) -> tuple[range, ...]:
    bounds = [0, *sorted((step + 2 * rank) % (PIECES + 1) for rank in range(1, size)), PIECES]
    return tuple(starmap(range, pairwise(bounds)))


def exact_sum(step: int, node: Node) -> Array:
    return np.sum([gradient(step, piece) for piece in range(*node)], axis=0, dtype=np.float32)


@pytest.mark.parametrize("transport", ["shm", "tcp", "aab"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_everyone_has_the_sum_of_what_was_encoded_and_the_rest_is_exact(
    size: int, transport: str, tmp_path: Path
) -> None:
    codecs = [Half() for _ in range(size)]

    def train(group: AbstractGroup) -> list[bytes]:
        encoding = VectorEncoding(codecs[group.rank], LAYOUT, GRADIENTS)
        exchange = group.open(LAYOUT, 4, encoding)
        totals = []
        for step in range(STEPS):
            held = shares(step, group.size)
            for slot, node in enumerate(cover(PIECES, held[group.rank])):
                vector = exchange.slot(slot)
                vector.f32[:] = exact_sum(step, node)
                vector.f64[:] = node.hi - node.lo
                vector.i64[:] = step
            total, notes = exchange.reduce(f"step {step}", PIECES, held, f"{group.rank} at {step}".encode())
            assert notes == [f"{rank} at {step}".encode() for rank in range(group.size)]
            assert (total.f64 == PIECES).all()
            assert (total.i64 == step * sum(len(cover(PIECES, run)) for run in held)).all()
            totals.append(
                b"".join(total.f32[run.lo : run.hi].tobytes() for run in (*GRADIENTS, PieceRun(0, 1900, 2000)))
            )
        exchange.close()
        return totals

    found = run_group(size, transport, tmp_path, train)
    assert found == [found[0]] * size
    lost: dict[tuple[int, int], Array] = {}  # by rank and slot: what was left out before
    for step in range(STEPS):
        slots = {}
        for rank, share in enumerate(shares(step, size)):
            for slot, node in enumerate(cover(PIECES, share)):
                wanted = exact_sum(step, node)
                wanted[:1900] += lost.get((rank, slot), np.zeros(1900, np.float32))
                half = wanted[:1900].astype(np.float16)
                lost[rank, slot] = wanted[:1900] - half
                slots[node] = np.concatenate([half.astype(np.float32), wanted[1900:]])
        total = expected(step, Node(0, PIECES), slots)
        assert found[0][step] == total[:900].tobytes() + total[912:].tobytes()
    sent = sum(len(cover(PIECES, share)) for step in range(STEPS) for share in shares(step, size))
    assert sum(codec.encoded for codec in codecs) == sent, "each partial sum once"
    assert {codec.decoded + codec.added for codec in codecs} == {sent}, "everyone takes each of them once"


def test_a_step_that_is_done_again_is_encoded_as_if_for_the_first_time() -> None:
    """As when a worker was lost in it: what was left out must not be left out twice."""
    encoding = VectorEncoding(Half(), VectorLayout(1), [PieceRun(0, 0, 1)])
    vector = Vector(np.full(1, 2049.0, np.float32), np.empty(0), np.empty(0, np.int64))

    def sent() -> float:
        return float(encoding.encode(0, vector)[0][0])

    assert [sent(), sent()] == [2048.0, 2048.0]
    encoding.commit()
    assert [sent(), sent()] == [2050.0, 2050.0]
