"""Groups of workers, each a thread of its own, over real sockets and real shared memory."""

from __future__ import annotations

from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shoal.collectives import shared
from shoal.collectives.group import AbstractExchange, AbstractGroup, Alone, PeerGroup
from shoal.collectives.layout import Array, Loan, VectorLayout
from shoal.collectives.tree import Node, cover, split
from shoal.errors import Diverged, UsageError
from shoal.observe.counters import Traffic

from .harness import evenly, run_group

TRANSPORTS = ("shm", "tcp", "aab")  # see make_workers
SMALL, LARGE = VectorLayout(1000, 3, 5), VectorLayout(shared.SMALL // 4 + 12_345, 3, 5)
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
each_size = pytest.mark.parametrize("size", [1, 2, 4])


def gradient(step: int, piece: int, count: int) -> Array:
    random = np.random.default_rng([step, piece])
    return (random.standard_normal(count) * 10.0 ** random.integers(-6, 7, count)).astype(np.float32)


def node_sum(step: int, node: Node, count: int) -> Array:
    if node.hi - node.lo == 1:
        return gradient(step, node.lo, count)
    left, right = split(node)
    return node_sum(step, left, count) + node_sum(step, right, count)


def fill(
    exchange: AbstractExchange, group: AbstractGroup, step: int, held: tuple[range, ...], layout: VectorLayout
) -> None:
    """Write this worker's partial sums of a step of held[-1].stop pieces."""
    for slot, node in enumerate(cover(held[-1].stop, held[group.rank])):
        vector = exchange.slot(slot)
        vector.f32[:] = node_sum(step, node, layout.f32)
        vector.f64[:] = node.hi - node.lo
        vector.i64[:] = step


@each_transport
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["small", "large"])
def test_the_total_is_the_same_bits_for_any_number_of_workers_and_any_shares(
    transport: str, layout: VectorLayout, tmp_path: Path
) -> None:
    expected = [node_sum(step, Node(0, 6), layout.f32).tobytes() for step in range(4)]

    def train(group: AbstractGroup) -> list[bytes]:
        exchange = group.open(layout, slots=4)
        totals = []
        for step in range(4):
            # Shares that change from step to step, as when workers' speeds do.
            bounds = [0, *sorted((step + 2 * rank) % 7 for rank in range(1, group.size)), 6]
            held = tuple(starmap(range, pairwise(bounds)))
            fill(exchange, group, step, held, layout)
            note = f"{group.rank} at {step}".encode()
            total, notes = exchange.reduce(f"step {step}", 6, held, note)
            assert notes == [f"{rank} at {step}".encode() for rank in range(group.size)]
            assert (total.f64 == 6).all()
            assert (total.i64 == step * sum(len(cover(6, run)) for run in held)).all()
            totals.append(total.f32.tobytes())
        exchange.close()
        return totals

    for size in (1, 2, 3, 5):
        assert run_group(size, transport, tmp_path, train) == [expected] * size


@each_transport
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["small", "large"])
def test_what_is_lent_counts_as_if_it_were_written(transport: str, layout: VectorLayout, tmp_path: Path) -> None:
    """Loans of odd sizes, with gaps that are written, across the borders of everyone's slices."""
    edges = [0, layout.f32 // 7, layout.f32 // 2 + 3, layout.f32 - 5]

    def train(group: AbstractGroup) -> list[bytes]:
        held = evenly(group.size, group.size)
        exchange = group.open(layout, 1)
        totals = []
        for step in range(3):
            mine = gradient(step, group.rank, layout.f32)
            exchange.slot(0).f32[:] = np.nan if group.size > 1 else mine
            exchange.slot(0).f32[edges[1] : edges[2]] = mine[edges[1] : edges[2]]
            exchange.slot(0).f32[edges[3] :] = mine[edges[3] :]
            lent = [mine[edges[0] : edges[1]].copy(), mine[edges[2] : edges[3]].copy()]
            exchange.lend([Loan(0, edges[2], lent[1]), Loan(0, edges[0], lent[0])])
            totals.append(exchange.reduce(f"step {step}", group.size, held, b"").total.f32.tobytes())
        exchange.close()
        return totals

    for size in (1, 2, 3):
        expected = [node_sum(step, Node(0, size), layout.f32).tobytes() for step in range(3)]
        assert run_group(size, transport, tmp_path, train) == [expected] * size


@each_transport
def test_what_a_worker_wrote_stays_until_the_commit(transport: str, tmp_path: Path) -> None:
    def step(group: AbstractGroup) -> None:
        exchange = group.open(LARGE, 1)
        slot = exchange.slot(0)
        slot.f32[:] = group.rank + 1
        exchange.reduce("step", 2, (range(1), range(1, 2)), b"")
        assert (slot.f32 == group.rank + 1).all()
        exchange.close()

    run_group(2, transport, tmp_path, step)


@each_transport
def test_many_steps_of_workers_that_run_ahead_of_each_other(transport: str, tmp_path: Path) -> None:
    def train(group: AbstractGroup) -> None:
        exchange = group.open(VectorLayout(64), 1)
        held = evenly(group.size, group.size)
        for step in range(200):
            exchange.slot(0).f32[:] = step + group.rank
            total, _ = exchange.reduce(f"step {step}", group.size, held, b"")
            assert (total.f32 == 3 * step + 3).all()
        exchange.close()

    run_group(3, transport, tmp_path, train)


@each_transport
def test_two_exchanges_are_open_at_once(transport: str, tmp_path: Path) -> None:
    def train(group: AbstractGroup) -> None:
        both = [group.open(SMALL, 1), group.open(LARGE, 1)]
        for step in range(6):
            exchange = both[step % 2]
            exchange.slot(0).f32[:] = step
            assert (exchange.reduce(f"step {step}", 2, (range(1), range(1, 2)), b"").total.f32 == 2 * step).all()
        for exchange in both:
            exchange.close()

    run_group(2, transport, tmp_path, train)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_over_sockets_a_worker_sends_no_more_than_it_must(size: int, tmp_path: Path) -> None:
    """2 (N - 1) / N of a vector each, for one partial sum each, beside some headers."""
    layout = VectorLayout(16 * 12 * 1000)

    def count(group: AbstractGroup) -> int:
        assert isinstance(group, PeerGroup)
        exchange = group.open(layout, 1)
        connections = group._meeting._connections.values()
        before = sum(connection.bytes_sent for connection in connections)
        exchange.reduce("step", size, evenly(size, size), b"")
        sent = sum(connection.bytes_sent for connection in connections) - before
        exchange.close()
        return sent

    must = 2 * (size - 1) * layout.nbytes // size
    for sent in run_group(size, "tcp", tmp_path, count):
        assert must <= sent <= must + 400 * (size - 1)


@pytest.mark.parametrize(("hosts", "sums"), [("aabb", 1), ("abab", 2)], ids=["by rank", "interleaved"])
def test_between_hosts_each_element_crosses_once_per_sum_of_a_host(hosts: str, sums: int, tmp_path: Path) -> None:
    """Half a vector per sum and half a vector of totals, whatever the number of a host's workers."""
    layout = VectorLayout(16 * 12 * 1000)

    def count(group: AbstractGroup) -> tuple[int, int]:
        assert isinstance(group, PeerGroup)
        exchange = group.open(layout, 1)
        connections = group._meeting._connections
        before = {rank: connection.bytes_sent for rank, connection in connections.items()}
        exchange.reduce("step", 4, evenly(4, 4), b"")
        sent = {rank: connections[rank].bytes_sent - before[rank] for rank in connections}
        exchange.close()
        near = [rank for rank in sent if hosts[rank] == hosts[group.rank]]
        return sum(sent[rank] for rank in near), sum(sent[rank] for rank in sent if rank not in near)

    counts = run_group(4, hosts, tmp_path, count)
    assert all(near < 300 for near, _ in counts)
    for host in "ab":
        crossed = sum(far for rank, (_, far) in enumerate(counts) if hosts[rank] == host)
        must = (sums + 1) * layout.nbytes // 2
        assert must <= crossed <= must + 4 * 400


@pytest.mark.parametrize("transport", ["shm", "tcp", "ab", "aa"])
def test_what_a_worker_gives_to_others_is_counted_by_its_way(transport: str, tmp_path: Path) -> None:
    layout = VectorLayout(1 << 21)
    steps = 8

    def count(group: AbstractGroup) -> Traffic:
        assert isinstance(group, PeerGroup)
        exchange = group.open(layout, 1)
        for _ in range(steps):
            exchange.reduce("step", 2, (range(1), range(1, 2)), b"")
        sent = sum(connection.bytes_sent for connection in group._meeting._connections.values())
        exchange.close()
        assert group._meeting.traffic.sent == sent
        return group._meeting.traffic

    for traffic in run_group(2, transport, tmp_path, count):
        if transport in ("shm", "aa"):
            assert (traffic.shared, traffic.arrived) == (steps * layout.nbytes, 0)
            assert traffic.sent < 2000 * steps
        else:
            assert traffic.shared == 0
            assert steps * layout.nbytes <= traffic.sent < steps * (layout.nbytes + 2000)
            # More than a socket holds: the rest comes while it is waited for, which is no waiting for a peer. On a busy
            # machine all of it may come at once, but hardly at every step.
            assert 0 < traffic.arrived <= steps * layout.nbytes
            assert traffic.arriving > 0.0


def test_over_shared_memory_only_headers_are_sent(tmp_path: Path) -> None:
    def count(group: AbstractGroup) -> int:
        assert isinstance(group, PeerGroup)
        exchange = group.open(LARGE, 1)
        (connection,) = group._meeting._connections.values()
        before = connection.bytes_sent
        exchange.reduce("step", 2, (range(1), range(1, 2)), b"")
        exchange.close()
        return connection.bytes_sent - before

    assert max(run_group(2, "shm", tmp_path, count)) < 300


@each_transport
@each_size
def test_gather_gives_everyones_values_by_rank(transport: str, size: int, tmp_path: Path) -> None:
    big = bytes(900_000)  # more than a socket's buffer: all send before anyone has read

    def scene(group: AbstractGroup) -> list[list[bytes]]:
        return [group.gather("small", bytes([group.rank])), group.gather("big", big)]

    expected = [[bytes([rank]) for rank in range(size)], [big] * size]
    assert run_group(size, transport, tmp_path, scene) == [expected] * size


@each_transport
@each_size
def test_broadcast_writes_the_chiefs_arrays_into_everyones(transport: str, size: int, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        arrays = [
            np.full((300, 400), group.rank, np.float32),
            np.full((2, 3), group.rank, ml_dtypes.bfloat16),
            np.full((4, 6), group.rank, np.int64)[:, ::2],
            np.array(group.rank),
            np.empty((0, 3)),
        ]
        group.broadcast("initial weights", arrays)
        assert all((array == 0).all() for array in arrays)

    run_group(size, transport, tmp_path, scene)


@each_transport
@each_size
def test_gather_rows_gives_everyones_arrays_by_rank(transport: str, size: int, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        rows = group.gather_rows("predict", [np.full((rank, 3), rank, np.float32) for rank in range(group.rank + 1)])
        assert [len(arrays) for arrays in rows] == [rank + 1 for rank in range(size)]
        for arrays in rows:
            for rank, array in enumerate(arrays):
                np.testing.assert_array_equal(array, np.full((rank, 3), rank, np.float32))

    run_group(size, transport, tmp_path, scene)


@each_transport
@each_size
def test_scatter_gives_each_its_part(transport: str, size: int, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        for step in range(5):
            parts = [[np.full((rank + 1, 50_000), step), np.array([f"row {rank}"])] for rank in range(size)]
            given: Any = parts if group.rank == 0 else None
            header, mine = group.scatter(f"batch {step}", given, b"header" if group.rank == 0 else b"")
            assert header == b"header"
            for got, expected in zip(mine, parts[group.rank], strict=True):
                np.testing.assert_array_equal(got, expected)

    run_group(size, transport, tmp_path, scene)


@each_transport
def test_arrays_that_do_not_match_the_chiefs_are_named_before_anything_is_written(
    transport: str, tmp_path: Path
) -> None:
    kept: list[Array] = []

    def scene(group: AbstractGroup) -> None:
        arrays = [np.zeros(3), np.ones((4, 5 + group.rank))]
        kept.extend(arrays)
        group.broadcast("initial weights", arrays)

    with pytest.raises(Diverged, match=r"array 1 of worker-0 is float64\[4, 5\], of worker-1 it is float64\[4, 6\]"):
        run_group(2, transport, tmp_path, scene)
    assert all((array == array.flat[0]).all() for array in kept)


def test_another_number_of_arrays_is_named(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="worker-0 has 1 arrays, worker-1 has 2"):
        run_group(2, "shm", tmp_path, lambda group: group.broadcast("weights", [np.zeros(1)] * (group.rank + 1)))


@each_transport
def test_scripts_that_diverge_are_told_both_sides(transport: str, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        group.gather("hello", b"")
        group.gather("fit step 3" if group.rank else "evaluate", b"")

    with pytest.raises(Diverged, match=r"scripts have diverged: worker-. is at '.*', worker-. at '.*'"):
        run_group(2, transport, tmp_path, scene)


def test_layouts_that_differ_are_named(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"wants \(f32, f64, i64, rounded, form, slots\) = .*, worker-"):
        run_group(2, "shm", tmp_path, lambda group: group.open(VectorLayout(10 + group.rank), 1))


def test_shares_on_which_workers_disagree_are_found_out(tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        exchange = group.open(LARGE, 2)
        held = ((range(1), range(1, 4)), (range(2), range(2, 4)))[group.rank]
        try:
            exchange.reduce("step", 4, held, b"")
        finally:
            exchange.close()

    with pytest.raises(Diverged, match=r"worker-. says that it holds the pieces"):
        run_group(2, "shm", tmp_path, scene)


@each_size
def test_more_partial_sums_than_slots_are_refused(size: int, tmp_path: Path) -> None:
    def scene(group: AbstractGroup) -> None:
        exchange = group.open(SMALL, 1)
        held = (range(3), range(3, 8), *[range(8, 8)] * (size - 2))[:size]
        try:
            exchange.reduce("step", 8, held, b"")
        finally:
            exchange.close()

    with pytest.raises(UsageError, match=r"partial sums|none of the nodes"):
        run_group(size, "shm", tmp_path, scene)


def test_a_total_can_be_read_while_the_next_gradient_is_written_when_alone() -> None:
    exchange = Alone("worker-0").open(VectorLayout(4), 1)
    exchange.slot(0).f32[:] = 1
    total, notes = exchange.reduce("step 0", 8, (range(8),), b"note")
    exchange.slot(0).f32[:] = 2
    assert (total.f32 == 1).all()
    assert notes == [b"note"]
    with pytest.raises(IndexError):
        exchange.slot(1)
    exchange.close()
