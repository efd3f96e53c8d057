"""A worker's part in the store of one fit, from its beginning to its end; with tables, until the next one begins.

It is opened with what trainings before it have left on servers, and is remembered as what it leaves itself.

`evaluate` and `predict` look at tables too. Where no fit has left its store open for that, because the model was
loaded, or never trained, or not as the last one, all workers open one for the call. The servers, whose scripts come to
the same call, serve it (`shoal.hook.served.serving.show_tables`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.collectives.group import AbstractGroup, Result
from shoal.errors import Diverged
from shoal.observe.phases import Phase
from shoal.store.client import Client
from shoal.store.decisions.director_messages import Open
from shoal.store.decisions.worker_state import Weights
from shoal.store.values.operations import Assignment, Operation
from shoal.strategies.schema import Array
from shoal.training.run import Run
from shoal.training.server_leftovers import ServerLeftovers
from shoal.training.store_layout import ShardLayout, TablesLayout
from shoal.training.tables import Tables


class FitStore:
    """The store of a fit, and the model's tables in it."""

    def __init__(
        self,
        run: Run,
        layout: ShardLayout,
        tables: Tables,
        call: int,
        ahead: int,
        codec: AbstractCodec = AS_THEY_ARE,
    ) -> None:
        """`ahead`: updates that this worker may be at; 0 in synchronous training."""
        self._run = run
        self._leftovers = run.memory.of(ServerLeftovers)
        self._layout = layout
        self._call = call
        self._ahead = ahead
        self._codec = codec
        self._client: Client | None = None
        self._stays = False  # when the fit is over: the servers still have tables
        self.tables = tables

    @property
    def client(self) -> Client:
        assert self._client is not None, "enter first"
        return self._client

    def open(self, initial: Weights, about: Open, before: Callable[[], None] = lambda: None) -> None:
        """The training begins, with these weights. `about`: all of it but what servers have already. Collective.

        `before` is called when the client is there, and before anybody can be told to compute something.
        """
        self._leftovers.refuse_other_loads(self._run.worker_group, self._layout)
        goes_on = self._leftovers.left_for(self._layout)
        tables = self._layout.tables.numbers
        self._enter(initial)
        remembers = self._leftovers.remembered()
        before()
        self.client.open(msgspec.structs.replace(about, tables=tables, goes_on=goes_on, remembers=remembers))

    def come_late(self) -> None:
        """The others have opened it; this worker does not know the weights yet."""
        self._enter(None)

    def deliver(
        self, operation: Operation, parcels: Sequence[Sequence[Array]], rate: float | None, what: str
    ) -> Weights:
        """Collective: every worker brings some shards' parcels of one operation. Returns the weights with it."""

        def act(group: AbstractGroup) -> Result:
            mine = {shard: parcels[shard] for shard in range(group.rank, len(parcels), group.size)}
            self.client.deliver(operation, mine, rate)
            return Result(group.gather(f"{what}: applied", str(self.client.view).encode()), [])

        views = self._run.worker_group.commit(act).values
        return self.client.pull(max(map(int, views)))

    def assign(self, operation: Assignment, parcels: Sequence[Sequence[Array]], what: str) -> Weights | None:
        """Collective: callbacks have changed the weights, on all workers alike, or have not: then there are no parcels.
        The servers take them over, once. Returns what they have then.
        """
        digest = hashlib.sha256()
        for array in (array for parcel in parcels for array in parcel):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        odd = self._run.worker_group.gather(f"{what}: weights changed by callbacks", digest.digest()).unlike_chiefs()
        if odd:
            raise Diverged(
                f"{what}: callbacks have changed the weights of {', '.join(odd)} in another way than the chief's. "
                "Every worker runs the callbacks: let them do the same on all, whatever the rank, with fixed seeds."
            )
        if not parcels:
            return None
        return self.deliver(operation, parcels, None, f"{what}: weights changed by callbacks")

    def finish(self) -> None:
        """The training is over. Rows of tables can still be looked at."""
        if self.tables:
            self._stays = True
            self._run.memory.of(StayingStore).stay(self)
        else:
            self.client.finish()

    def close(self) -> None:
        if self._client is not None and not self._stays:
            self._leave()

    def end_stay(self) -> None:
        if self._run.is_chief:
            self.client.finish()
        self._leave()

    def _enter(self, initial: Weights | None) -> None:
        self._client = self._run.client(self._call, self._layout.shapes, initial, self._ahead, self._codec)
        self.tables.open(self._layout.tables, self._client)
        self._leftovers.leave(self._call, self._layout)

    def _leave(self) -> None:
        self.tables.close()
        self.client.close()


class StayingStore:
    """The store of the last training with tables, or of the last call that looked at some: until another one begins, or
    the script is over. Several, if one training went on within another.
    """

    def __init__(self) -> None:
        self._stores: list[FitStore] = []

    def stay(self, store: FitStore) -> None:
        self._stores.append(store)

    def leave(self) -> None:
        while self._stores:
            self._stores.pop().end_stay()


def leave_last(run: Run) -> None:
    """The servers of the last training are not needed any more. The chief tells them."""
    run.memory.of(StayingStore).leave()


def open_tables(run: Run, tables: Tables, call: int) -> None:
    """From now on the tables of a built model can be looked at. Collective."""
    # Within another call, a fit's own store is open: the tables of another model can't be looked at meanwhile.
    if not tables or tables.are_shown or run.servers is None or run.calls.is_nested:
        return
    leave_last(run)
    run.record(Phase.WAITING, "for the servers to show the rows of tables")
    layout = TablesLayout(tables.layers, run.servers.count)
    store = FitStore(run, layout, tables, call, ahead=0)
    store.open([], Open(call, layout.sizes, 0, batches=1, bound=0, replicas=run.servers.replicas, ahead=1))
    store.finish()
