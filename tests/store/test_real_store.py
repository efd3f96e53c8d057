"""A coordinator with its director, servers and workers: real sockets, in threads. Only the tensors are toys."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cluster.served import Run
from shoal.clock import Deadline
from shoal.config import Servers
from shoal.errors import RunEnded
from shoal.store.client import Client, EpochEnd, Work
from shoal.store.director import Director
from shoal.store.letters import Open
from shoal.store.server import Server
from shoal.store.tensors import Array, ArrayShape, Shapes, ShardShapes
from shoal.wire.listener import Listener

SHAPES = [ShardShapes((ArrayShape("float32", size),), (ArrayShape("float32", size),)) for size in (5, 3000, 70_000)]
BATCHES = 12
EPOCHS = 2


class Sums:
    """A shard to which gradients are added, and a counter, as an optimizer has one."""

    def __init__(self, shard: int) -> None:
        self.values = np.zeros(SHAPES[shard].weights[0].size, np.float32)
        self.count = np.zeros(1, np.int64)

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        self.values += gradients[0]
        self.count += 1

    def weights(self) -> Sequence[Array]:
        return [self.values]

    def set_weights(self, weights: Sequence[Array]) -> None:
        self.values[:] = weights[0]

    def state(self) -> Sequence[Array]:
        return [self.values, self.count]

    def state_shapes(self) -> Shapes:
        return (ArrayShape("float32", self.values.size), ArrayShape("int64", 1))

    def load(self, state: Sequence[Array]) -> None:
        self.values[:], self.count[:] = state

    def digest(self) -> int:
        return hash((self.values.tobytes(), int(self.count[0]))) & (2**62 - 1)


class Store:
    """A run with servers, its processes played by threads."""

    def __init__(self, folder: Path, workers: int, servers: int, replicas: int, bound: int | None) -> None:
        told = Servers(servers, replicas, bound)
        self.run = Run(folder, workers, least=1, servers=told, open_department=partial(Director, 10.0))
        self.folder = folder
        self.bound = bound
        self.replicas = replicas
        self.servers: dict[str, Server] = {}
        self.tensors: dict[tuple[str, int], Sums] = {}
        self.computed: list[tuple[str, int, int]] = []
        self.ends: dict[str, list[EpochEnd]] = {}
        self.staleness: list[int] = []
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start_server(self, number: int, late: bool = False) -> None:
        self._start(partial(self._serve, number, late))

    def start_worker(self, number: int, at_batch: Callable[[Work], None] = lambda work: None) -> None:
        self._start(partial(self._work, number, at_batch))

    def kill_server(self, id: str) -> None:
        """As the system would: its connections close, and nothing more is done."""
        server = self.servers[id]
        server._seat._connection._sock.shutdown(2)
        server.over(RunEnded("killed"))

    def wait_for_copies(self) -> None:
        """Until every shard has a backup: before that, a loss is a loss."""
        director = self.run.coordinator._membership._department
        deadline = Deadline.after(20.0)
        while not all(view.backups for view in director._state.training.placement.views):
            assert not deadline.passed()
            time.sleep(0.001)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "hangs"

    def _start(self, what: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                what()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._threads.append(thread)

    def _serve(self, number: int, late: bool) -> None:
        id = f"server-{number}"
        listener = Listener(f"unix:{self.folder / id}.sock", self.run.key)
        seat = (self.run.come_late if late else self.run.join)(number, address=listener.address, role="server")

        def make(shard: int) -> Sums:
            return self.tensors.setdefault((id, shard), Sums(shard))

        server = self.servers[id] = Server(id, 0, seat, listener, self.run.key, SHAPES, make)
        try:
            with contextlib.suppress(RunEnded):
                server.serve()
        finally:
            server.close()
            listener.close()

    def _work(self, number: int, at_batch: Callable[[Work], None]) -> None:
        id = f"worker-{number}"
        seat = self.run.join(number)
        initial = [[np.full(shape.weights[0].size, 7.0, np.float32)] for shape in SHAPES]
        client = Client(id, 0, seat, self.run.key, SHAPES, initial, 2)
        sizes = tuple(shape.weights[0].size * 4 for shape in SHAPES)
        client.open(Open(0, sizes, 0, BATCHES, self.bound, self.replicas, 2))
        for epoch in range(EPOCHS):
            if epoch:
                client.go_on(epoch, BATCHES)
            while isinstance(todo := client.next(), Work):
                at_batch(todo)
                self.computed.append((id, todo.batch.epoch, todo.batch.place))
                client.push(todo.batch, [[np.ones(shape.gradients[0].size, np.float32)] for shape in SHAPES], None)
            self.ends.setdefault(id, []).append(todo)
        self.staleness += client.observed.elements()
        if number == 0:
            client.finish()
        client.close()
        seat.done()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Store]]:
    with contextlib.ExitStack() as stack:

        def start(workers: int, servers: int, replicas: int, bound: int | None = None) -> Store:
            store = Store(tmp_path_factory.mktemp("s"), workers, servers, replicas, bound)
            stack.callback(store.run.close)
            stack.callback(store.wait)
            for number in range(servers):
                store.start_server(number)
            return store

        yield start


def is_exact(store: Store) -> None:
    """Every batch is in every shard once, wherever it is held, and everybody saw the same at the end of each epoch."""
    store.wait()
    assert not store.errors
    assert sorted({(epoch, place) for _, epoch, place in store.computed}) == [
        (epoch, place) for epoch in range(EPOCHS) for place in range(BATCHES)
    ]
    for ends in store.ends.values():
        for epoch, end in enumerate(ends):
            assert end.epoch == epoch
            assert all((weights[0] == 7 + BATCHES * (epoch + 1)).all() for weights in end.weights)


@pytest.mark.parametrize(("workers", "servers", "replicas", "bound"), [(1, 1, 1, None), (2, 2, 2, None), (3, 2, 1, 2)])
def test_every_batch_is_applied_once_and_all_see_the_same_weights_at_the_end(start, workers, servers, replicas, bound):
    store = start(workers, servers, replicas, bound)
    for number in range(workers):
        store.start_worker(number)
    is_exact(store)
    assert len(store.ends) == workers
    assert bound is None or max(store.staleness) <= bound


def test_a_server_is_lost_and_its_backup_goes_on_with_everything(start):
    store = start(2, 2, 2)
    killed = threading.Event()

    def at_batch(work: Work) -> None:
        if not killed.is_set():
            store.wait_for_copies()
            killed.set()
            store.kill_server("server-0")
            store.start_server(2, late=True)

    store.start_worker(0, at_batch)
    store.start_worker(1)
    is_exact(store)
    assert killed.is_set()
