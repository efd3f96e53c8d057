"""A coordinator with its director, servers and workers: real sockets, in threads. Only the tensors are toys."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.half_precision import Half

from cluster.served import Run
from shoal.clock import Deadline
from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.config import Servers
from shoal.errors import PeerTimeout, RunEnded
from shoal.store.client import Client
from shoal.store.decisions.director import Director
from shoal.store.decisions.director_messages import FROM_DIRECTOR, Grant, Open
from shoal.store.decisions.worker_state import BatchWork, EpochEnd, LookUp
from shoal.store.server import Server
from shoal.store.values.operations import Assignment, Batch
from shoal.store.values.rows import Fill, KeptRows, NewRows, Table
from shoal.store.values.tensors import AnyShapes, Array, ArrayShape, RowShapes, Shapes, ShardShapes, Tensors
from shoal.wire.listener import Listener

DENSE = [
    ShardShapes(
        (ArrayShape("float32", size),),
        (ArrayShape("float32", size), ArrayShape("int64", 1)),
        exact=1,
        assigned=(ArrayShape("float32", size), ArrayShape("int64", 1)),
    )
    for size in (5, 3000, 70_000)
]
TABLE = Table("table", 1000, 4, NewRows(Fill.CONSTANT, 3.0), parts=2)
TABLES = [RowShapes(TABLE.rows_of(part), TABLE.width) for part in range(TABLE.parts)]
SHAPES: list[AnyShapes] = [*DENSE, *TABLES]  # parts 0 and 1 of the table are shards 3 and 4
SIZES = (*(shape.weights[0].size * 4 for shape in DENSE), *(shape.rows * 16 for shape in TABLES))
BATCHES = 12
EPOCHS = 2
ONE = np.ones(1, np.int64)


class Sums:
    """A shard to which gradients are added, and a counter, as an optimizer has one."""

    rows = 0

    def __init__(self, shard: int) -> None:
        self.values = np.zeros(DENSE[shard].weights[0].size, np.float32)
        self.count = np.zeros(1, np.int64)

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        self.values += gradients[0]
        self.count += gradients[1]

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        return [self.values]

    def averages(self) -> Sequence[Array]:
        return [self.values / 2]

    def set_weights(self, weights: Sequence[Array]) -> None:
        self.values[:] = weights[0]

    def assign(self, assigned: Sequence[Array]) -> None:
        self.values[:] = assigned[0]

    def state(self) -> Sequence[Array]:
        return [self.values, self.count]

    def state_shapes(self, rows: int) -> Shapes:
        return (ArrayShape("float32", self.values.size), ArrayShape("int64", 1))

    def load(self, state: Sequence[Array]) -> None:
        self.values[:], self.count[:] = state

    def digest(self) -> int:
        return hash((self.values.tobytes(), int(self.count[0]))) & (2**62 - 1)

    def listed(self, start: int) -> Sequence[Array]:
        raise AssertionError("a shard that is no table has no rows")


class Rows:
    """A part of a table to whose rows gradients are added."""

    def __init__(self, part: int) -> None:
        self._part = part
        self.kept = KeptRows(TABLE, part, ())

    @property
    def rows(self) -> int:
        return len(self.kept)

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        ids, changes = gradients
        places = self.kept.places(ids)
        self.kept.scatter(places, [self.kept.gather(places)[0] + changes.reshape(-1, TABLE.width)])

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        return [self.kept.read(asked[0]).reshape(-1)]

    def averages(self) -> Sequence[Array]:
        raise AssertionError("tables have none")

    def assign(self, assigned: Sequence[Array]) -> None:
        raise AssertionError("no worker has rows")

    def set_weights(self, weights: Sequence[Array]) -> None:
        assert not weights, "no worker has rows"
        self.kept = KeptRows(TABLE, self._part, ())

    def state(self) -> Sequence[Array]:
        return [self.kept.ids, self.kept.columns[0].reshape(-1)]

    def state_shapes(self, rows: int) -> Shapes:
        return (ArrayShape("int64", rows), ArrayShape("float32", rows * TABLE.width))

    def load(self, state: Sequence[Array]) -> None:
        self.kept.replace(state[0], state[1:])

    def digest(self) -> int:
        return hash((self.kept.ids.tobytes(), self.kept.columns[0].tobytes())) & (2**62 - 1)

    def listed(self, start: int) -> Sequence[Array]:
        return [self.kept.ids[start : start + 2], self.kept.columns[0][start : start + 2].reshape(-1)]


def rows_of(batch: Batch) -> dict[int, Array]:
    """What a batch needs of the table, by shard: one row that all need, one of its own, and none of the second part."""
    return {3: np.array([0, 2 + 2 * batch.place]), 4: np.empty(0, np.int64)}


class Store:
    """A run with servers, its processes played by threads."""

    def __init__(
        self,
        folder: Path,
        workers: int,
        servers: int,
        replicas: int,
        bound: int | None,
        codec: AbstractCodec = AS_THEY_ARE,
    ) -> None:
        told = Servers(servers, replicas, bound)
        self.run = Run(folder, workers, least=1, servers=told, open_service=partial(Director, 10.0))
        self.folder = folder
        self.bound = bound
        self.codec = codec
        self.replicas = replicas
        self.servers: dict[str, Server] = {}
        self.tensors: dict[tuple[str, int], Tensors] = {}
        self.assigned: float | None = None  # to all weights, between two epochs
        self.met = threading.Barrier(workers)
        self.looked: list[Array] = []  # rows, when all is over
        self.listed: list[tuple[Array, Array]] = []
        self.computed: list[tuple[str, int, int]] = []
        self.ends: dict[str, list[EpochEnd]] = {}
        self.staleness: list[int] = []
        self.applied: dict[str, Counter[int]] = {}  # by server: staleness -> updates
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start_server(self, number: int, late: bool = False) -> None:
        self._start(partial(self._serve, number, late))

    def start_worker(self, number: int, at_batch: Callable[[BatchWork], None] = lambda work: None) -> None:
        self._start(partial(self._work, number, at_batch))

    def initial(self) -> list[Sequence[Array]]:
        return [[np.full(shape.weights[0].size, 7.0, np.float32)] for shape in DENSE]

    def kill_server(self, id: str) -> None:
        """As the system would: its connections close, and nothing more is done."""
        server = self.servers[id]
        server._coordinator_link._connection._sock.shutdown(2)
        server.over(RunEnded("killed"))

    def wait_for_copies(self) -> None:
        """Until every shard has a backup: before that, a loss is a loss."""
        director = self.run.coordinator._membership._service._service
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

        thread = threading.Thread(target=guarded, daemon=True)  # one that hangs must not keep the tests from ending
        thread.start()
        self._threads.append(thread)

    def _serve(self, number: int, late: bool) -> None:
        id = f"server-{number}"
        listener = Listener(f"unix:{self.folder / id}.sock", self.run.key)
        coordinator_link = (self.run.come_late if late else self.run.join)(
            number, address=listener.address, role="server"
        )

        def make(shard: int) -> Tensors:
            made = Sums(shard) if shard < len(DENSE) else Rows(shard - len(DENSE))
            return self.tensors.setdefault((id, shard), made)

        server = self.servers[id] = Server(
            id, 0, coordinator_link, listener, self.run.key, SHAPES, make, codec=self.codec
        )
        try:
            with contextlib.suppress(RunEnded):
                server.serve(observed=self.applied.setdefault(id, Counter()))
        finally:
            server.close()
            listener.close()

    def _work(self, number: int, at_batch: Callable[[BatchWork], None]) -> None:
        id = f"worker-{number}"
        coordinator_link = self.run.join(number)
        client = Client(id, 0, coordinator_link, self.run.key, SHAPES, self.initial(), 2, self.codec)
        client.open(Open(0, SIZES, 0, BATCHES, self.bound, self.replicas, 2, tables=(3, 4)))
        for epoch in range(EPOCHS):
            if epoch and self.assigned is not None:  # by all, some perhaps when others train again
                values = [[np.full(shape.weights[0].size, self.assigned, np.float32), ONE] for shape in DENSE]
                client.deliver(Assignment(epoch, 0), dict(enumerate(values)), None)
            if epoch:
                client.go_on(epoch, BATCHES)
            while not isinstance(todo := client.next(), EpochEnd):
                if isinstance(todo, LookUp):
                    client.look_up(todo.batch, rows_of(todo.batch))
                    continue
                at_batch(todo)
                self.computed.append((id, todo.batch.epoch, todo.batch.place))
                dense = [[np.ones(shape.gradients[0].size, np.float32), ONE] for shape in DENSE]
                asked = rows_of(todo.batch)
                pushed = [[asked[shard], np.ones(asked[shard].size * TABLE.width, np.float32)] for shard in (3, 4)]
                client.push(todo.batch, [*dense, *pushed], None)
            self.ends.setdefault(id, []).append(todo)
            self.met.wait(30)  # as trainings do: nobody goes on, or closes it, before all have the epoch's weights
        self.staleness += client.observed.elements()
        if number == 0:
            self.looked = list(client.look({3: np.array([0, 2, 998]), 4: np.array([1])}).values())
            self.listed = list(client.listed(3))
            client.finish()
        client.close()
        coordinator_link.done()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Store]]:
    with contextlib.ExitStack() as stack:

        def start(
            workers: int, servers: int, replicas: int, bound: int | None = None, codec: AbstractCodec = AS_THEY_ARE
        ) -> Store:
            store = Store(tmp_path_factory.mktemp("s"), workers, servers, replicas, bound, codec)
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
            begun = 7 + BATCHES * epoch if epoch == 0 or store.assigned is None else store.assigned
            assert all((weights[0] == begun + BATCHES).all() for weights in end.weights[: len(DENSE)])
    # All have added to row 0, one batch in each epoch to row 2, none to the others, which are as new.
    expected = [[3.0 + EPOCHS * BATCHES, 3.0 + EPOCHS, 3.0], [3.0]]
    assert [rows.reshape(-1, TABLE.width).tolist() for rows in store.looked] == [
        [[value] * TABLE.width for value in part] for part in expected
    ]
    ids = np.concatenate([ids for ids, _ in store.listed])
    assert sorted(ids) == [0, *range(2, 2 + 2 * BATCHES, 2)], "exactly the rows that were ever updated"


def test_weights_that_all_workers_assign_count_once(start):
    store = start(2, 2, 2, codec=Half())
    store.assigned = 100.0
    for number in range(2):
        store.start_worker(number)
    is_exact(store)


@pytest.mark.parametrize(("workers", "servers", "replicas", "bound"), [(1, 1, 1, None), (2, 2, 2, None), (3, 2, 1, 2)])
def test_every_batch_is_applied_once_and_all_see_the_same_weights_at_the_end(start, workers, servers, replicas, bound):
    store = start(workers, servers, replicas, bound)
    for number in range(workers):
        store.start_worker(number)
    is_exact(store)
    assert len(store.ends) == workers
    assert bound is None or max(store.staleness) <= bound
    applied = sum((seen for seen in store.applied.values()), Counter())
    updates = len(store.staleness) * len(SHAPES)
    assert updates <= applied.total() <= updates * replicas, "a copy may begin behind the first of them"
    assert max(applied) == max(store.staleness), "a server sees what the workers are told"


def test_a_server_is_lost_and_its_backup_goes_on_with_everything(start):
    store = start(2, 2, 2)
    killed = threading.Event()

    def at_batch(work: BatchWork) -> None:
        if not killed.is_set():
            store.wait_for_copies()
            killed.set()
            store.kill_server("server-0")
            store.start_server(2, late=True)

    store.start_worker(0, at_batch)
    store.start_worker(1)
    is_exact(store)
    assert killed.is_set()


def test_gradients_travel_in_a_codecs_form_and_every_replica_decodes_them(start):
    codec = Half()
    store = start(2, 2, 2, codec=codec)
    for number in range(2):  # a backup that comes later gets the first updates as a part of the state, not to decode
        store.start_worker(number, lambda work: store.wait_for_copies())
    is_exact(store)
    assert codec.encoded >= len(DENSE) * BATCHES * EPOCHS
    assert codec.decoded >= 2 * len(DENSE) * BATCHES * EPOCHS


def test_an_update_that_is_delivered_again_is_encoded_once(start):
    """As when a step is redone because a worker was lost: what was left out must not be left out twice."""
    codec = Half()
    store = start(1, 1, 1, bound=0, codec=codec)
    pulled: list[Array] = []

    def work() -> None:
        coordinator_link = store.run.join(0)
        client = Client("worker-0", 0, coordinator_link, store.run.key, SHAPES, store.initial(), 0, codec)
        client.open(Open(0, SIZES, 0, BATCHES, 0, 1, 1, tables=(3, 4)))
        update = [[np.full(shape.gradients[0].size, 2049.0, np.float32), np.ones(1, np.int64)] for shape in DENSE]
        for place in range(2):  # in half precision 2048, then 2050
            client.deliver(Batch(0, place), {0: update[0], 2: update[2]}, None)
            client.deliver(Batch(0, place), {0: update[0], 1: update[1]}, None)
        pulled.extend(weights[0] for weights in client.pull(client.view)[: len(DENSE)])
        client.finish()
        client.close()
        coordinator_link.done()

    store._start(work)
    store.wait()
    assert not store.errors
    assert codec.encoded == 2 * len(DENSE)
    assert all((weights == 7 + 2 * 2049).all() for weights in pulled)


def test_a_grant_that_is_told_again_is_not_computed_again(start, monkeypatch: pytest.MonkeyPatch):
    """A director that takes over tells what it can't know to have been heard."""
    told: list[bytes] = []
    read = Client.read

    def read_again(self: Client, content: bytes) -> None:
        read(self, content)
        for earlier in told:
            read(self, earlier)
        if isinstance(FROM_DIRECTOR.decode(content), Grant):
            told.append(content)

    monkeypatch.setattr(Client, "read", read_again)
    store = start(1, 1, 1)
    store.start_worker(0)
    is_exact(store)
    assert len(store.computed) == EPOCHS * BATCHES


def test_a_server_that_leaves_questions_unanswered_is_named(start):
    store = start(1, 1, 1)
    told: list[str] = []
    wedged = threading.Event()

    def work() -> None:
        coordinator_link = store.run.join(0)
        client = Client("worker-0", 0, coordinator_link, store.run.key, SHAPES, store.initial(), 1, patience=0.3)
        client.open(Open(0, SIZES, 0, BATCHES, None, 1, 1, tables=(3, 4)))
        todo = client.next()
        assert isinstance(todo, LookUp)
        store.servers["server-0"]._hear = lambda *_: wedged.wait(10.0)
        client.look_up(todo.batch, rows_of(todo.batch))
        try:
            client.next()
        except PeerTimeout as error:
            told.append(str(error))
        wedged.set()
        client.finish()
        client.close()
        coordinator_link.done()

    store._start(work)
    store.wait()
    assert "no answer of server-0 for" in told[0]
